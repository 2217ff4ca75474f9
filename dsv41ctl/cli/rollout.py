"""`rollout`, `rollback`, `plan` and `history`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv41ctl.cli.context import Options, emit, note, options, stderr

if TYPE_CHECKING:
    from dsv41ctl.apply import Session
    from dsv41ctl.config import Cluster
    from dsv41ctl.rollout.gates import Summary
    from dsv41ctl.rollout.journey import Journey

__all__ = ["run_journey"]


def run_journey(
    ctx: typer.Context,
    cluster: "Cluster",
    verb: str,
    walk: "Callable[[Journey, Session], None]",
    *,
    out: Path | None,
    summary_path: Path | None = None,
    quick: bool = False,
    atomic: bool = True,
) -> None:
    """Runs `walk` with gates shown, writes the summary and exits with the code of the gate that stopped it.

    Args:
        ctx: the command's.
        cluster: the cluster file.
        verb: name in the journal.
        walk: takes the gates.
        out: directory of captures and reports; default: a new one below the state directory.
        summary_path: where the JSON summary goes too.
        quick: leave the bench out.
        atomic: undo to A when a gate fails.
    """
    from dsv41ctl.apply import open_session, state_directory
    from dsv41ctl.rollout.display import Display, summary_view
    from dsv41ctl.rollout.gates import GateStopped, Summary, Tracker
    from dsv41ctl.rollout.journey import Journey, Settings
    from dsv41ctl.rollout.record import run_name, write_summary

    given = options(ctx)
    folder = out if out is not None else state_directory() / "runs" / run_name(cluster.name)
    summary = Summary(cluster.name)
    stopped: GateStopped | None = None
    with Display(stderr()) as display:
        tracker = Tracker(summary, display.gate)
        with open_session(
            cluster,
            verb,
            progress=lambda step: display.say(f"{step.host}: {step.title}: {step.word.value}"),
            line=lambda host, text: display.say(f"{host}: {text}"),
        ) as session:
            try:
                journey = Journey(session, tracker, Settings(folder, bench=not quick, atomic=atomic), display.say)
                walk(journey, session)
            except GateStopped as error:
                stopped = error
            except KeyboardInterrupt:
                summary.ended = "interrupted; `dsv41ctl status` names what is up, `dsv41ctl rollback` brings A back"
                write_summary(summary, folder / "summary.json", summary_path)
                raise
            write_summary(summary, folder / "summary.json", summary_path)
            session.journal.note("summary", verdict=summary.verdict.value, ended=summary.ended)
    emit(ctx, summary.as_json(), lambda: summary_view(summary))
    _last_words(summary, given, stopped)
    if stopped is not None:
        raise typer.Exit(int(stopped.code))


def _last_words(summary: "Summary", given: Options, stopped: Exception | None) -> None:
    if stopped is not None:
        note(f"dsv41ctl: {stopped}")
    elif summary.ended == "B":
        flag = f" --cluster {given.cluster}" if given.cluster else ""
        note(f"B is up and proven; next: dsv41ctl{flag} status, or dsv41ctl{flag} rollback")


def register(app: typer.Typer) -> None:
    """Adds the verbs to the root."""

    @app.command()
    def rollout(
        ctx: typer.Context,
        out: Annotated[Path | None, typer.Option(help="Directory of captures, reports and summary.")] = None,
        bench: Annotated[bool, typer.Option(help="Measure speed of both arms.")] = True,
        atomic: Annotated[bool, typer.Option(help="Undo to A when a gate fails.")] = True,
    ) -> None:
        """From A to a proven B: server, A, floor, stage, prebuild, B, check, rows, compare, bench."""
        from dsv41ctl.lab.verbs import ensure_up

        given = options(ctx)
        cluster = given.load()
        if given.dry_run:
            from dsv41ctl.cli.dry import render_rollout

            render_rollout(ctx, cluster)
            return

        def walk(journey: "Journey", session: "Session") -> None:
            if cluster.lab is not None:
                ensure_up(session, journey.gates, journey.say)
            journey.to_b()

        run_journey(ctx, cluster, "rollout", walk, out=out, quick=not bench, atomic=atomic)

    @app.command()
    def rollback(
        ctx: typer.Context,
        purge: Annotated[bool, typer.Option("--purge", help="Also remove the staged files.")] = False,
    ) -> None:
        """Back to A: remove B's environment, restart A, prove A."""
        given = options(ctx)
        cluster = given.load()
        if given.dry_run:
            from dsv41ctl.cli.dry import render_rollback

            render_rollback(ctx, cluster, purge=purge)
            return
        if purge and not given.yes:
            typer.confirm(
                f"remove {cluster.paths.stage} on {', '.join(n.name for n in cluster.nodes)}?", abort=True, err=True
            )
        run_journey(ctx, cluster, "rollback", lambda journey, _: journey.to_a(purge=purge), out=None)

    @app.command()
    def plan(ctx: typer.Context) -> None:
        """Show what a rollout would change: files, commands and environment, host by host, and the overlay's diff."""
        from dsv41ctl.cli.dry import render_rollout

        given = options(ctx)
        render_rollout(ctx, given.load())

    @app.command()
    def history(
        ctx: typer.Context,
        limit: Annotated[int, typer.Option(min=1, help="The newest runs shown.")] = 20,
    ) -> None:
        """List past runs with their verdicts, from this machine's journal."""
        from dsv41ctl.apply import list_journals
        from dsv41ctl.rollout.record import history_json, history_table

        found = list_journals()[-limit:]
        emit(ctx, history_json(found), lambda: history_table(found))
