"""`server ...`: the table server's life on its host."""

from typing import TYPE_CHECKING, Annotated

import typer

from dsv41ctl.cli.context import Json, emit, options
from dsv41ctl.cli.steps_view import emit_outcome, run_session

if TYPE_CHECKING:
    from dsv41ctl.apply import ServerState

__all__ = ["app", "server_lines"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The table server on its host.")


@app.command()
def build(ctx: typer.Context) -> None:
    """Build engram_server on the table host; nothing when the same sources are built already."""
    from dsv41ctl.apply import server_build

    with run_session(ctx, "server build") as session:
        outcome = server_build(session)
    emit_outcome(ctx, outcome)


@app.command()
def start(ctx: typer.Context) -> None:
    """Start the table server, and wait until its tables are loaded and verified."""
    from dsv41ctl.apply import server_start

    with run_session(ctx, "server start") as session:
        outcome = server_start(session)
    emit_outcome(ctx, outcome)


@app.command()
def stop(ctx: typer.Context) -> None:
    """Stop the table server, until it is gone. A serve in B goes on with its exact local rows."""
    from dsv41ctl.apply import server_stop

    with run_session(ctx, "server stop") as session:
        outcome = server_stop(session)
    emit_outcome(ctx, outcome)


@app.command()
def status(ctx: typer.Context) -> None:
    """Show tables, listeners, opens, lookups and identities."""
    from dsv41ctl.apply import open_session, server_status
    from dsv41ctl.errors import Exit, UsageError

    given = options(ctx)
    if given.offline:
        raise UsageError("`server status` looks at the table host and has nothing to say offline")
    # It only reads: like a dry run it leaves no journal.
    with open_session(given.load(), "server status", dry_run=True) as session:
        found = server_status(session)
    document: Json = {"schema": 1, "servers": [server.as_json() for server in found]}
    emit(ctx, document, lambda: "\n".join(line for server in found for line in server_lines(server)))
    if any(server.running is None for server in found):
        raise typer.Exit(int(Exit.INCONCLUSIVE))
    if any(server.status is None or not server.status.ready for server in found):
        raise typer.Exit(int(Exit.CHECK_SAYS_NO))


@app.command()
def logs(
    ctx: typer.Context,
    lines: Annotated[int, typer.Option(min=1, help="How many lines of its end.")] = 200,
) -> None:
    """Print the end of the table server's log."""
    from dsv41ctl.apply import open_session, server_logs
    from dsv41ctl.errors import UsageError

    given = options(ctx)
    if given.offline:
        raise UsageError("`server logs` reads from the table host and has nothing to say offline")
    with open_session(given.load(), "server logs", dry_run=True) as session:
        found = server_logs(session, lines)
    prefix = len(found) > 1
    emit(
        ctx,
        dict(found),
        lambda: "\n".join(
            f"{host} | {line}" if prefix else line for host, text in found.items() for line in text.splitlines()
        ),
    )


@app.command()
def unit(ctx: typer.Context) -> None:
    """Print a hardened unit for `systemctl --user`; it is neither installed nor enabled."""
    from dsv41ctl.plan import server_unit

    cluster = options(ctx).load()
    units: dict[str, Json] = {entry.name: server_unit(entry) for entry in cluster.table_hosts}
    emit(ctx, units, lambda: "\n".join(str(text) for text in units.values()))


def server_lines(server: "ServerState") -> list[str]:
    """What the seed's `engram_ctl.sh status` printed, a line a fact."""
    seen = server.status
    if seen is None:
        word = "cannot be read" if server.running is None else ("runs" if server.running else "stopped")
        return [f"{server.host}: {word}" + (f": {server.problem}" if server.problem else "")]
    lines = [f"{server.host}: pid {seen.pid} version {seen.version} up {seen.uptime_s:.0f} s"]
    for table in seen.tables:
        lines.append(
            f"ready={seen.ready} layer={table.layer} rows={table.rows} verified={table.verified} "
            f"identity={table.identity or 'unknown'}" + ("" if table.verified else f" progress={table.progress:.0%}")
        )
    lines += [f"listening {listener}" for listener in seen.listeners]
    codes = "".join(f" {code}:{count}" for code, count in seen.refusals.by_code.items())
    lines.append(
        f"opens={seen.opens.current} opens_total={seen.opens.total} lookups={seen.lookups} rows={seen.rows} "
        f"refusals={seen.refusals.total}{codes}"
    )
    lines.append(
        f"rss={seen.rss_bytes / 2**30:.2f} GiB huge={seen.huge_share:.0%} "
        f"gather_us p50={seen.gather_us.p50:.1f} p99={seen.gather_us.p99:.1f}"
    )
    return lines
