"""`lab`: the embedded cluster, and the demo on it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv41ctl.cli.context import emit, options, stderr
from dsv41ctl.cli.rollout import run_journey

if TYPE_CHECKING:
    from dsv41ctl.apply import Session
    from dsv41ctl.rollout.journey import Journey

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The embedded lab: a small cluster on this machine."
)


@app.command()
def up(ctx: typer.Context) -> None:
    """Make the lab's checkpoint, image and hosts, and build the native binaries."""
    from dsv41ctl.apply import open_session, server_build
    from dsv41ctl.lab.verbs import layout_of
    from dsv41ctl.lab.verbs import up as make_up

    given = options(ctx)
    cluster = given.load()
    root = str(layout_of(cluster).root)
    if given.dry_run:
        emit(ctx, {"root": root, "word": "would change"}, lambda: f"{root}: would change")
        return
    console = stderr()
    with console.status("lab up") as status, open_session(cluster, "lab up") as session:
        changed = make_up(cluster, lambda text: status.update(f"lab up: {text}"))
        status.update("lab up: native build")
        changed = bool(server_build(session).changed) or changed
    word = "changed" if changed else "unchanged"
    emit(ctx, {"root": root, "word": word}, lambda: f"{root}: {word}")


@app.command()
def down(
    ctx: typer.Context,
    purge: Annotated[bool, typer.Option("--purge", help="Also remove the lab's directory.")] = False,
) -> None:
    """Stop everything that the lab runs."""
    from dsv41ctl.apply import open_session
    from dsv41ctl.lab.verbs import down as take_down
    from dsv41ctl.lab.verbs import layout_of

    given = options(ctx)
    cluster = given.load()
    root = layout_of(cluster).root
    if given.dry_run:
        emit(ctx, {"root": str(root), "word": "would change"}, lambda: f"{root}: would stop what runs")
        return
    if purge and not given.yes:
        typer.confirm(f"remove {root}?", abort=True, err=True)
    with open_session(cluster, "lab down") as session:
        text = take_down(session, purge=purge)
    emit(ctx, {"root": str(root), "word": "changed", "detail": text}, lambda: text)


@app.command()
def status(ctx: typer.Context) -> None:
    """Show the lab's hosts, their arm, and the table server."""
    from dsv41ctl.apply import open_session
    from dsv41ctl.apply import status as cluster_status
    from dsv41ctl.cli.serve_verbs import status_view
    from dsv41ctl.lab.verbs import layout_of

    cluster = options(ctx).load()
    layout_of(cluster)
    with open_session(cluster, "lab status", dry_run=True) as session:
        found = cluster_status(session)
    emit(ctx, found.as_json(), lambda: status_view(found))


@app.command()
def demo(
    ctx: typer.Context,
    summary: Annotated[Path | None, typer.Option(help="Where the JSON summary goes too.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the lab up in A.")] = False,
) -> None:
    """The whole way: lab up, A, floor, B, checks, comparison, bench, back to A, lab down."""
    from dsv41ctl.lab.verbs import down as take_down
    from dsv41ctl.lab.verbs import ensure_up, layout_of

    given = options(ctx)
    cluster = given.load()
    layout_of(cluster)

    def walk(journey: "Journey", session: "Session") -> None:
        ensure_up(session, journey.gates, journey.say)
        try:
            journey.to_b()
            journey.to_a()
        finally:
            if not keep:
                with journey.gates.gate("lab down") as gate:
                    gate.passed(take_down(session))
        journey.gates.summary.ended = "A, kept up" if keep else "lab down"

    run_journey(ctx, cluster, "lab demo", walk, out=None, summary_path=summary)


@app.command()
def bench(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="Directory of the figures.")] = Path("build/bench"),
    rounds: Annotated[int, typer.Option(min=1, max=20, help="A and B this often, in turn.")] = 2,
) -> None:
    """Measure A and B in turn on the lab."""
    from dsv41ctl.lab.bench import measure

    cluster = options(ctx).load()
    found = measure(cluster, out, rounds, stderr())
    emit(ctx, found.as_json(), found.view)
