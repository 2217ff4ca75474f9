"""Writes a comparison as JSON and as one HTML page that needs nothing but itself."""

import json
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from dsv41ctl.ab.comparison import Comparison, comparison_json
from dsv41ctl.ab.files import write_whole
from dsv41ctl.ab.plot import plot

__all__ = ["number", "render_html", "show_range", "write_report"]


def number(value: float | None) -> str:
    """A figure for a table; a dash where there is none."""
    return "–" if value is None else "0" if value == 0 else f"{value:.3g}"  # noqa: RUF001 - a dash for people


def percent(value: float | None) -> str:
    """A share for a table. Rounded down, so that 100 % means all."""
    return "–" if value is None else f"{int(value * 10000) / 100:g} %"  # noqa: RUF001 - a dash for people


def show_range(start: int, end: int) -> str:
    """Positions [start, end) for a table."""
    return f"{start:,}+" if end >= 1 << 40 else f"{start:,} to {end - 1:,}"


def render_html(comparison: Comparison) -> str:
    """The page. Everything from a capture is escaped; nothing is loaded from elsewhere."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(number=number, percent=percent)
    environment.globals.update(plot=plot, show_range=show_range)
    source = files("dsv41ctl.ab").joinpath("templates", "report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(comparison=comparison)


def write_report(comparison: Comparison, html_path: Path | None, json_path: Path | None) -> None:
    """Writes the report's files; None leaves one out.

    Raises:
        Dsv41Error: a file cannot be written.
    """
    if json_path is not None:
        document = json.dumps(comparison_json(comparison), indent=1, ensure_ascii=False, allow_nan=False)
        write_whole(json_path, document + "\n")
    if html_path is not None:
        write_whole(html_path, render_html(comparison))
