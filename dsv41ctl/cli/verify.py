"""`verify rows`: byte-exactness through the real reader, on every node."""

from typing import TYPE_CHECKING, Annotated

import typer

from dsv41ctl.cli.context import Json, emit, options

if TYPE_CHECKING:
    from rich.table import Table

    from dsv41ctl.checks.run import RowsResult

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Compare rows byte by byte.")


@app.callback()
def _group() -> None:
    """Compare rows byte by byte."""


@app.command()
def rows(
    ctx: typer.Context,
    sample: Annotated[
        int | None, typer.Option(min=0, help="Random rows a rank and table (default: cluster file).")
    ] = None,
    refusals: Annotated[bool, typer.Option(help="Also try the twelve kinds of refusal.")] = True,
) -> None:
    """Read rows through the remote reader on every node and compare each with the local shard."""
    from dsv41ctl.apply import open_session
    from dsv41ctl.checks.evaluate import Verdict
    from dsv41ctl.checks.run import verify_rows
    from dsv41ctl.errors import Exit, UsageError

    given = options(ctx)
    if given.offline:
        raise UsageError("`verify rows` reads rows on the nodes and has nothing to say offline")
    with open_session(given.load(), "verify rows") as session:
        results = verify_rows(session, sample=sample, refusals=refusals)
    emit(ctx, rows_json(results), lambda: rows_table(results))
    verdicts = {result.verdict for result in results.values()}
    if Verdict.FAIL in verdicts:
        raise typer.Exit(int(Exit.CHECK_SAYS_NO))
    if verdicts != {Verdict.PASS}:
        raise typer.Exit(int(Exit.INCONCLUSIVE))


def rows_json(results: "dict[str, RowsResult]") -> dict[str, Json]:
    """The document of `verify rows --json`."""
    nodes: dict[str, Json] = {
        name: {**result.model_dump(mode="json"), "verdict": result.verdict.value} for name, result in results.items()
    }
    return {
        "schema": 1,
        "rows_compared": sum(result.rows for result in results.values()),
        "bad": sum(result.bad for result in results.values()),
        "nodes": nodes,
    }


def rows_table(results: "dict[str, RowsResult]") -> "Table":
    """One line a node and table."""
    from rich.table import Table

    table = Table(title="rows compared byte by byte")
    for column in ("node", "layer", "rows", "bad", "first bad ids", "corner cases", "refusals", "verdict"):
        table.add_column(column)
    for name, result in results.items():
        refused = f"{result.refusals.right}/{result.refusals.tried}" if result.refusals else "not tried"
        for layer in result.layers:
            first = ", ".join(str(row) for row in layer.first_bad[:4])
            table.add_row(
                name, str(layer.layer), f"{layer.rows_compared:,}", str(layer.bad), first, str(layer.corner_cases),
                refused, result.verdict.value,
            )  # fmt: skip
    return table
