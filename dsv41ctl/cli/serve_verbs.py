"""`start`, `stop`, `status`: the serve."""

from typing import TYPE_CHECKING, Annotated

import typer

from dsv41ctl.cli.check import ArmChoice
from dsv41ctl.cli.context import emit, options
from dsv41ctl.cli.steps_view import emit_outcome, run_session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsv41ctl.apply import ClusterStatus, NodeStatus, ServerState

__all__ = ["register", "status_view"]


def register(app: typer.Typer) -> None:
    """Adds the verbs to the root."""

    @app.command()
    def start(
        ctx: typer.Context,
        arm: Annotated[ArmChoice, typer.Option(help="The configuration to bring up.")],
    ) -> None:
        """Bring the serve up in a configuration on every node, and wait until it answers."""
        from dsv41ctl.apply import start as run

        with run_session(ctx, f"start --arm {arm.value}") as session:
            outcome = run(session, "B" if arm is ArmChoice.B else "A")
        emit_outcome(ctx, outcome)

    @app.command()
    def stop(ctx: typer.Context) -> None:
        """Stop the serve on every node, until it is gone there."""
        from dsv41ctl.apply import stop as run

        with run_session(ctx, "stop") as session:
            outcome = run(session)
        emit_outcome(ctx, outcome)

    @app.command()
    def status(ctx: typer.Context) -> None:
        """Show what runs where, in which configuration, and what is staged."""
        from dsv41ctl.apply import open_session
        from dsv41ctl.apply import status as observe
        from dsv41ctl.errors import Exit, UsageError

        given = options(ctx)
        if given.offline:
            raise UsageError("`status` looks at the hosts and has nothing to say offline")
        # It only reads: like a dry run it leaves no journal.
        with open_session(given.load(), "status", dry_run=True) as session:
            found = observe(session)
        emit(ctx, found.as_json(), lambda: status_view(found))
        if found.state == "mixed":
            raise typer.Exit(int(Exit.MIXED))
        if found.state == "unknown":
            raise typer.Exit(int(Exit.INCONCLUSIVE))


_COLOURS = {"A": "cyan", "B": "green", "stopped": "dim", "mixed": "bold red", "unknown": "yellow"}


def status_view(found: "ClusterStatus") -> "RenderableType":
    """Nodes, table servers, and the state of the whole."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    nodes = Table(title="nodes")
    for column in ("node", "rank", "serve", "arm", "since", "staged", "overlay"):
        nodes.add_column(column, overflow="fold")
    for node in found.nodes:
        nodes.add_row(*(Text(word) for word in _node_row(node)))
    servers = Table(title="table servers")
    for column in ("host", "server", "tables", "listening", "opens", "lookups"):
        servers.add_column(column, overflow="fold")
    for server in found.servers:
        servers.add_row(*(Text(word) for word in _server_row(server)))
    line = Text.assemble("cluster: ", (found.state, _COLOURS[found.state]))
    if found.ready is False:
        line.append(" (the serve does not answer)", "yellow")
    if found.repair:
        line.append(f"; repair: {found.repair}")
    return Group(nodes, servers, line)


def _node_row(node: "NodeStatus") -> tuple[str, ...]:
    state = node.state
    if state is None:
        return node.node, str(node.rank), node.problem or "cannot be read", "?", "", "?", "?"
    word = "running" if state.running else "stopped"
    if state.exists and not state.running:
        word = f"ended with status {state.exit_status}"
    staged = "?" if node.staged is None else ("yes" if node.staged else "no")
    overlay = "" if node.overlay_sha256 is None else node.overlay_sha256[:12]
    if node.overlay_matches is not None:
        overlay += " as staged" if node.overlay_matches else " NOT as staged"
    if node.problem:
        overlay = node.problem
    # To the second, without the zone: all times are UTC.
    since = (state.started_at or "")[:19].replace("T", " ") if state.exists else ""
    return node.node, str(node.rank), word, node.arm or "", since, staged, overlay


def _server_row(server: "ServerState") -> tuple[str, ...]:
    if server.status is None:
        word = "cannot be read" if server.running is None else ("running" if server.running else "stopped")
        return server.host, word, server.problem or "", "", "", ""
    seen = server.status
    tables = "\n".join(f"layer {table.layer} {'verified' if table.verified else 'loading'}" for table in seen.tables)
    word = "ready" if seen.ready else "loading"
    opens = f"{seen.opens.current} ({seen.opens.total} in all)"
    return server.host, word, tables, "\n".join(seen.listeners), opens, f"{seen.lookups:,}"
