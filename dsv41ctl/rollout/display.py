"""Shows gates as they run: a line a gate on stderr, a spinner where a terminal looks on, and a table at the end."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from dsv41ctl.checks.evaluate import Verdict
from dsv41ctl.rollout.gates import Gate, Summary

__all__ = ["Display", "summary_view"]

_MARKS = {Verdict.PASS: "[green]✓[/]", Verdict.FAIL: "[bold red]✗[/]", Verdict.INCONCLUSIVE: "[yellow]?[/]"}


class Display:
    """A context in which gates are shown."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("", spinner="dots")
        self._current = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def gate(self, gate: Gate, done: bool) -> None:
        """A gate began, or ended."""
        if not done:
            self._current = gate.name
            self._status.update(escape(gate.name))
            return
        line = f"{_MARKS[gate.verdict]} [bold]{escape(gate.name):<16}[/] {gate.seconds:6.1f} s  {escape(gate.detail)}"
        self._console.print(line)

    def say(self, text: str) -> None:
        """What goes on inside the running gate."""
        self._status.update(f"{escape(self._current)}: [dim]{escape(text)}[/]")


def summary_view(summary: Summary) -> Panel:
    """The end of a rollout for a person: each gate and its verdict, where the report lies, what is up now."""
    table = Table(box=None, pad_edge=False)
    table.add_column("gate")
    table.add_column("verdict")
    table.add_column("seconds", justify="right")
    table.add_column("detail", overflow="fold")
    for gate in summary.gates:
        table.add_row(
            escape(gate.name),
            f"{_MARKS[gate.verdict]} {gate.verdict.value}",
            f"{gate.seconds:.1f}",
            escape(gate.detail),
        )
    total = sum(gate.seconds for gate in summary.gates)
    caption = f"ended: {summary.ended} · verdict: {summary.verdict.value} · {total:.0f} s"
    if summary.report:
        table.caption = f"report: {summary.report}"
    return Panel(table, title=f"{summary.cluster}: rollout", subtitle=escape(caption))
