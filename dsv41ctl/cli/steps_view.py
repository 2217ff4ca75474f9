"""Steps on a terminal: one line each as they end, and one table for the whole verb."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from dsv41ctl.cli.context import emit, note, options

if TYPE_CHECKING:
    from rich.text import Text

    from dsv41ctl.apply import Outcome, Session

__all__ = ["emit_outcome", "outcome_text", "run_session"]

_COLOURS = {"changed": "green", "unchanged": "dim", "would change": "yellow"}
# A staged tree has dozens of files: unchanged ones are counted, not listed, when there are more.
_LISTED = 6
# An overlay's diff belongs to a dry run.
_SHORT = 400


@contextmanager
def run_session(ctx: typer.Context, verb: str) -> Iterator["Session"]:
    """A session of this call's cluster file, whose long commands' output goes to stderr line by line."""
    from dsv41ctl.apply import open_session

    given = options(ctx)
    with open_session(
        given.load(),
        verb,
        dry_run=given.dry_run,
        offline=given.offline,
        line=lambda host, text: note(f"{host} | {text}"),
    ) as session:
        yield session


def emit_outcome(ctx: typer.Context, outcome: "Outcome") -> None:
    """The outcome on stdout: JSON with --json, else a line a step."""
    emit(ctx, outcome.as_json(), lambda: outcome_text(outcome, commands=options(ctx).dry_run))


def outcome_text(outcome: "Outcome", *, commands: bool) -> str:
    """An outcome to read. Lines are as long as they are: a command must be possible to paste.

    Args:
        outcome: what a verb did.
        commands: show commands and details of what would change: a dry run.
    """
    from rich.text import Text

    lines: list[Text] = []
    quiet = outcome.unchanged > _LISTED
    for step in outcome.steps:
        word = step.word.value
        if quiet and word == "unchanged":
            continue
        took = f"  {step.seconds:.1f} s" if step.seconds >= 0.1 else ""
        lines.append(Text.assemble((f"{word:<13}", _COLOURS[word]), f"{step.host}: {step.title}{took}"))
        if commands and step.command and step.argv:
            lines.append(Text(f"    $ {step.command}", style="dim"))
        if step.detail and (commands or len(step.detail) < _SHORT):
            lines += [Text(f"    {line}", style="dim") for line in step.detail.splitlines()]
    would = sum(step.word.value == "would change" for step in outcome.steps)
    counts = f"{outcome.changed} changed, {outcome.unchanged} unchanged" + (f", {would} would change" if would else "")
    word = outcome.word.value
    lines.append(Text.assemble((f"{outcome.verb}: ", "bold"), (word, _COLOURS[word]), f" ({counts})"))
    return _rendered(lines)


def _rendered(lines: "list[Text]") -> str:
    """Colours where stdout is a terminal; nothing is wrapped or cut."""
    import io
    import sys

    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, highlight=False, soft_wrap=True, force_terminal=sys.stdout.isatty())
    for line in lines:
        console.print(line, soft_wrap=True)
    return out.getvalue().removesuffix("\n")
