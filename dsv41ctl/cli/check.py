"""`check` and `ident`: proving which configuration is up."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from dsv41ctl.cli.context import Json, emit, options

if TYPE_CHECKING:
    from rich.table import Table

    from dsv41ctl.checks.evaluate import Report

__all__ = ["ArmChoice", "report_json", "report_table"]


class ArmChoice(StrEnum):
    """A configuration on the command line."""

    A = "A"
    B = "B"


_COLOURS = {"pass": "green", "fail": "bold red", "inconclusive": "yellow"}


def report_json(report: "Report") -> dict[str, Json]:
    """The document of `check --json`."""
    rows: list[Json] = [
        {"where": row.where, "what": row.what, "expected": row.expected, "seen": row.seen, "verdict": row.verdict.value}
        for row in report.rows
    ]
    return {"schema": 1, "arm": report.arm, "verdict": report.verdict.value, "rows": rows}


def report_table(report: "Report") -> "Table":
    """One line a row, and the verdict as the caption."""
    from rich.markup import escape
    from rich.table import Table

    verdict = report.verdict.value
    table = Table(title=f"configuration {report.arm}", caption=f"verdict: [{_COLOURS[verdict]}]{verdict}[/]")
    for column in ("where", "what", "expected", "seen", "verdict"):
        table.add_column(column, overflow="fold")
    for row in report.rows:
        word = f"[{_COLOURS[row.verdict.value]}]{row.verdict.value}[/]"
        table.add_row(escape(row.where), escape(row.what), escape(row.expected), escape(row.seen), word)
    return table


def register(app: typer.Typer) -> None:
    """Adds the verbs to the root."""

    @app.command()
    def check(
        ctx: typer.Context,
        arm: Annotated[ArmChoice, typer.Option(help="The configuration that must be up.")] = ArmChoice.B,
    ) -> None:
        """Prove that B is B (or A is A): logs of this start, environment, overlay, counters of both sides."""
        from dsv41ctl.apply import open_session
        from dsv41ctl.checks.evaluate import Verdict
        from dsv41ctl.checks.run import check as run_check
        from dsv41ctl.errors import Exit, UsageError

        given = options(ctx)
        if given.offline:
            raise UsageError("`check` looks at a running cluster and has nothing to say offline")
        with open_session(given.load(), "check") as session:
            report = run_check(session, arm.value)
        emit(ctx, report_json(report), lambda: report_table(report))
        codes = {Verdict.FAIL: Exit.CHECK_SAYS_NO, Verdict.INCONCLUSIVE: Exit.INCONCLUSIVE, Verdict.PASS: Exit.DONE}
        raise typer.Exit(int(codes[report.verdict]))

    @app.command()
    def ident(ctx: typer.Context) -> None:
        """Show the identities that each node presents, and those that the table servers hold."""
        from dsv41ctl.apply import open_session, server_status
        from dsv41ctl.checks.ident import compare_identities, identity_table
        from dsv41ctl.checks.run import ident as run_ident
        from dsv41ctl.errors import Exit, UsageError

        given = options(ctx)
        if given.offline:
            raise UsageError("`ident` looks at hosts and has nothing to say offline")
        with open_session(given.load(), "ident") as session:
            found = compare_identities(run_ident(session), server_status(session))
        emit(ctx, found.as_json(), lambda: identity_table(found))
        if found.unknown:
            raise typer.Exit(int(Exit.INCONCLUSIVE))
        if not found.agree:
            raise typer.Exit(int(Exit.CHECK_SAYS_NO))
