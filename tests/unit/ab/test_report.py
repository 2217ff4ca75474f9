import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dsv41ctl.ab.comparing import compare_captures
from dsv41ctl.ab.comparison import Bucket, Comparison
from dsv41ctl.ab.plot import plot
from dsv41ctl.ab.render import comparison_view
from dsv41ctl.ab.report import percent, render_html, show_range, write_report
from dsv41ctl.errors import Dsv41Error

from .make import capture, noisy, record

EVIL = "<script>alert(1)</script>\" onload='x' {{ 7*7 }} & [bold]"


def comparison(text: str = "The clerk.", **header: Any) -> Comparison:
    runs = [
        capture(label, record(text=text, size=500, steps=40, delta=noisy(seed, 0.01)), **header)
        for seed, label in enumerate(("A1", "A2", "B1"))
    ]
    return compare_captures(runs[:2], runs[2:])


class Tags(HTMLParser):
    """Collects tags and attributes, and checks nesting of what must be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert tags.open == []
    return tags


def test_the_page_needs_nothing_but_itself() -> None:
    html = render_html(comparison())
    tags = parsed(html)
    names = {tag for tag, _ in tags.seen}
    assert names.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "use", "image", "base", "form"})
    assert "svg" in names
    for _, attributes in tags.seen:
        assert attributes.keys().isdisjoint({"src", "href", "xlink:href", "srcset", "action", "data", "style"})
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"@import|url\(", html)
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html


@pytest.mark.parametrize("where", ["text", "model", "arm", "system_fingerprint", "degradations"])
def test_nothing_from_a_capture_becomes_markup(where: str) -> None:
    values: dict[str, Any] = {"arm": {EVIL: EVIL}, "degradations": [EVIL]}
    found = comparison(EVIL) if where == "text" else comparison(**{where: values.get(where, EVIL)})
    html = render_html(found)
    assert "&lt;script&gt;alert(1)" in html
    assert "<script" not in html
    assert "{{ 7*7 }}" in html
    assert "script" not in {tag for tag, _ in parsed(html).seen}


def test_the_page_shows_verdict_rule_figures_and_floor() -> None:
    found = comparison()
    html = render_html(found)
    assert "WITHIN FLOOR" in html
    assert "A-A floor" in html
    assert '<polygon class="band"' in html
    assert "The rule: IDENTICAL: every token" in html


def test_a_comparison_that_could_not_be_made_is_a_page_too() -> None:
    found = compare_captures([capture("A1", record())], [capture("B1", record(), model="other")])
    html = render_html(found)
    assert "INCONCLUSIVE" in html
    assert "different models, tiny and other" in html
    parsed(html)


def test_files_are_written_whole(tmp_path: Path) -> None:
    write_report(comparison(), tmp_path / "r.html", tmp_path / "r.json")
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    document = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (document["schema"], document["verdict"], document["exit"]) == (1, "WITHIN FLOOR", 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json"]
    write_report(comparison(), None, None)
    with pytest.raises(Dsv41Error, match="mkdir -p"):
        write_report(comparison(), tmp_path / "none" / "r.html", None)


def test_the_terminal_shows_the_same_and_takes_no_markup_from_captures() -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    found = compare_captures([capture("[red]A1", record())], [capture("B1[/]", record(flip=2))])
    console.print(comparison_view(found))
    text = console.export_text()
    assert "INCONCLUSIVE" in text
    assert "[red]A1 against B1[/]" in text
    assert "part at generated position 2: #2 and #102, margin 1.2" in text


def test_a_narrow_terminal_loses_nothing() -> None:
    found = comparison()
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(comparison_view(found))
    text = " ".join(console.export_text().split())
    for words in (found.rule, found.prompts[0].reason, "prompt section n mean p99 max KL top-1 ranks"):
        assert " ".join(words.split()) in text
    assert "…" not in text


def test_a_plot_stays_inside_its_frame() -> None:
    series = [
        Bucket(10, 20, 1e-12, 1e-12, None, None),
        Bucket(20, 30, 0.0, 0.0, 0.0, 0.0),
        Bucket(30, 40, 5.0, 9000.0, 1e-3, 1e-2),
    ]
    drawn = plot(series, 25)
    assert drawn is not None
    for points in (drawn.largest, drawn.mean, drawn.band):
        for point in points.split():
            x, y = map(float, point.split(","))
            assert drawn.left <= x <= drawn.right
            assert drawn.top <= y <= drawn.base
    assert drawn.boundary is not None
    assert plot([], 5) is None
    assert plot([Bucket(1, 2, 0.0, 0.0, None, None)], 5) is not None


def test_words_for_tables() -> None:
    assert percent(0.99999) == "99.99 %"
    assert percent(1.0) == "100 %"
    assert show_range(0, 1024) == "0 to 1,023"
    assert show_range(131072, 1 << 40) == "131,072+"
