"""Overlays: what is rendered, and that every anchor that does not fit is named."""

import ast
import hashlib
import itertools
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from dsv41ctl.errors import ConfigError, UsageError, exit_code
from dsv41ctl.lab.layout import IMAGE_ENGRAM, IMAGE_SOURCE
from dsv41ctl.overlay import (
    MARK,
    Edit,
    EditsDoNotFit,
    EditSet,
    UnknownImage,
    anchor_problems,
    derive,
    edit_set_names,
    load_edit_set,
    render,
)
from dsv41ctl.overlay.editset import edit_set_path, parse
from dsv41ctl.overlay.refresh import refreshed

LAB = (IMAGE_SOURCE / IMAGE_ENGRAM).read_bytes()


def _edit(name: str, anchor: str, replacement: str | None = None) -> Edit:
    return Edit(name=name, anchor=anchor, replacement=replacement or f"# {MARK}\n{anchor}")


def _set(source: bytes, *edits: Edit) -> EditSet:
    return EditSet(name="test", module="pkg.mod", image_sha256=(hashlib.sha256(source).hexdigest(),), edits=edits)


def test_lab_set_names_the_image_as_it_is() -> None:
    sha256 = hashlib.sha256(LAB).hexdigest()
    text = edit_set_path("lab").read_text()
    assert refreshed(text, sha256) == text, "run: python -m dsv41ctl.overlay.refresh"


def test_lab_diff(snapshot: SnapshotAssertion) -> None:
    assert render(LAB, load_edit_set("lab")).diff == snapshot


def test_lab_overlay_is_marked_python() -> None:
    edit_set = load_edit_set("lab")
    rendered = render(LAB, edit_set)
    first, second, *rest = rendered.text.splitlines()
    assert first == "# DSV41-OFFLOAD module: lab_engine.engram"
    assert second == f"# DSV41-OFFLOAD edit set: lab, image sha256 {hashlib.sha256(LAB).hexdigest()}"
    assert sum(MARK in line for line in rest) >= len(edit_set.edits)
    assert len(edit_set.edits) <= 8
    assert rendered.sha256 == hashlib.sha256(rendered.data).hexdigest()
    defined = {node.name for node in ast.parse(rendered.text).body if isinstance(node, ast.FunctionDef)}
    assert "_load_engram_remote_ext" in defined


def test_render_is_deterministic_and_in_any_order() -> None:
    edit_set = load_edit_set("lab")
    backwards = edit_set.model_copy(update={"edits": edit_set.edits[::-1]})
    assert render(LAB, edit_set) == render(LAB, backwards)


def test_unknown_image_is_refused_with_the_known_ones() -> None:
    edit_set = load_edit_set("lab")
    with pytest.raises(UnknownImage) as caught:
        render(LAB + b"\n", edit_set)
    message = str(caught.value)
    assert hashlib.sha256(LAB + b"\n").hexdigest() in message
    assert all(sha256 in message for sha256 in edit_set.image_sha256)
    assert "overlay derive" in message
    assert exit_code(caught.value) == 3


def test_derive_says_that_an_unknown_file_fits() -> None:
    (lab,) = [result for result in derive(LAB + b"\n") if result.edit_set == "lab"]
    assert (lab.known, lab.fits, lab.problems) == (False, True, ())
    (lab,) = [result for result in derive(LAB) if result.edit_set == "lab"]
    assert (lab.known, lab.fits) == (True, True)


def test_derive_names_each_anchor_that_fails_and_where() -> None:
    text = LAB.decode()
    edit_set = load_edit_set("lab")
    twice, gone, *_ = edit_set.edits
    changed = (text + "\n" + twice.anchor).replace(gone.anchor, gone.anchor.replace("model_dir", "directory"))
    (lab,) = [result for result in derive(changed.encode()) if result.edit_set == "lab"]
    problems = {problem.edit: problem for problem in lab.problems}
    assert set(problems) == {twice.name, gone.name}
    lines = changed.splitlines()
    first = twice.anchor.splitlines()[0]
    assert [lines[line - 1] for line in problems[twice.name].lines] == [first, first]
    assert f"lines {', '.join(map(str, problems[twice.name].lines))}" in problems[twice.name].reason
    assert "it begins at line" in problems[gone.name].reason


words = st.text(st.sampled_from("ab\n "), min_size=1, max_size=12)


@given(text=st.text(st.sampled_from("ab\n "), max_size=60), anchors=st.lists(words, min_size=1, max_size=5))
def test_every_problem_is_reported(text: str, anchors: list[str]) -> None:
    anchors = [anchor for anchor in anchors if anchor.strip()]
    assume(anchors)
    edits = [_edit(f"e{index}", anchor) for index, anchor in enumerate(anchors)]
    problems = anchor_problems(text, edits)
    named = {problem.edit for problem in problems}
    spans = []
    for edit in edits:
        starts = [at for at in range(len(text)) if text.startswith(edit.anchor, at)]
        if len(starts) != 1:
            assert edit.name in named
            (problem,) = [problem for problem in problems if problem.edit == edit.name]
            assert list(problem.lines) == [text[:at].count("\n") + 1 for at in starts]
        else:
            spans.append((starts[0], starts[0] + len(edit.anchor)))
    spans.sort()
    clash = any(begin < end for (_, end), (begin, _) in itertools.pairwise(spans))
    source = text.encode()
    if problems:
        assert clash or len(spans) < len(edits)
        with pytest.raises(EditsDoNotFit) as caught:
            render(source, _set(source, *edits))
        assert all(f"edit {name}: " in str(caught.value) for name in named)
    else:
        assert not clash
        rendered = render(source, _set(source, *edits))
        # Taking the changes out again gives the image's file back.
        body = rendered.text.split("\n", 2)[2]
        assert body.replace(f"# {MARK}\n", "") == text


def test_edits_of_the_same_text_are_refused() -> None:
    source = b"one two three\n"
    with pytest.raises(EditsDoNotFit, match="edit b: changes the same text as edit a, at line 1"):
        render(source, _set(source, _edit("a", "one two"), _edit("b", "two three")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "module: Field required"),
        ("module = 'm'\nimage_sha256 = ['00']", "image_sha256.0"),
        ("module = [", "not TOML"),
        ("module = 'm'\nimage_sha256 = []\nedit = []", "image_sha256"),
    ],
)
def test_broken_files_are_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"here/edits\.toml: ") as caught:
        parse("x", text, source="here/edits.toml")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ([{"name": "a", "anchor": "x", "replacement": "y"}], "edit a: the replacement bears no DSV41-OFFLOAD mark"),
        ([{"name": "a", "anchor": " \n", "replacement": MARK}], "edit a: the anchor is blank"),
        ([{"name": "a", "anchor": MARK, "replacement": MARK}], "edit a changes nothing"),
        ([{"name": "a", "anchor": x, "replacement": MARK} for x in "xy"], "edit name used twice: a"),
    ],
)
def test_edits_that_cannot_be_meant_are_refused(edits: list[dict[str, str]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EditSet.model_validate({"name": "t", "module": "m", "image_sha256": ["0" * 64], "edit": edits})


def test_unknown_set_names_the_known() -> None:
    with pytest.raises(UsageError, match="no edit set 'nope'; there are: lab"):
        load_edit_set("nope")
    assert "lab" in edit_set_names()


def test_every_shipped_set_loads() -> None:
    for path in edit_set_path("x").parent.parent.iterdir():
        assert load_edit_set(path.name).name == path.name


def test_a_file_without_a_last_newline_has_a_sound_diff() -> None:
    source = b"one\ntwo"
    diff = render(source, _set(source, _edit("a", "two", f"three  # {MARK}"))).diff
    assert diff.endswith(f"-two\n\\ No newline at end of file\n+three  # {MARK}\n\\ No newline at end of file\n")


def test_crlf_is_kept(tmp_path: Path) -> None:
    source = b"one\r\ntwo\r\n"
    rendered = render(source, _set(source, _edit("a", "two", f"2  # {MARK}")))
    assert rendered.data.endswith(b"one\r\n2  # DSV41-OFFLOAD\r\n")
