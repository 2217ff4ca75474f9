"""`stage`, `prebuild`, `env`: what B needs on the nodes before it starts."""

from typing import Annotated

import typer

from dsv41ctl.cli.check import ArmChoice
from dsv41ctl.cli.context import emit, note, options
from dsv41ctl.cli.steps_view import emit_outcome, run_session

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the verbs to the root."""

    @app.command()
    def stage(
        ctx: typer.Context,
        purge: Annotated[bool, typer.Option("--purge", help="Remove the staged tree instead.")] = False,
    ) -> None:
        """Put overlay, reader and manifest onto every node, and read them back. The serve may keep running."""
        from dsv41ctl.apply import stage as run

        if purge:
            _confirm(ctx, "remove the staged tree on every node")
        with run_session(ctx, "stage --purge" if purge else "stage") as session:
            outcome = run(session, purge=purge)
        emit_outcome(ctx, outcome)

    @app.command()
    def prebuild(
        ctx: typer.Context,
        force: Annotated[bool, typer.Option("--force", help="Build although a serve runs there.")] = False,
    ) -> None:
        """Compile the reader's extension on every node, so that no boot has to."""
        from dsv41ctl.apply import prebuild as run

        with run_session(ctx, "prebuild") as session:
            outcome = run(session, force=force)
        emit_outcome(ctx, outcome)

    @app.command()
    def env(
        ctx: typer.Context,
        arm: Annotated[ArmChoice, typer.Option(help="The configuration whose variables to print.")] = ArmChoice.B,
    ) -> None:
        """Print what a configuration adds to DOCKER_ENV."""
        from dsv41ctl.plan import docker_env, mask_env, render_env

        cluster = options(ctx).load()
        found = docker_env(cluster, "B" if arm is ArmChoice.B else "A")
        if arm is ArmChoice.A:
            removed = " ".join(docker_env(cluster, "B"))
            note(f"configuration A adds nothing; to go back to it, remove {removed}")
        shown = mask_env(found)
        emit(ctx, dict(shown), lambda: render_env(shown))


def _confirm(ctx: typer.Context, what: str) -> None:
    """Asks before a destructive step; --yes and dry runs do not."""
    from dsv41ctl.errors import UsageError

    given = options(ctx)
    if given.yes or given.dry_run:
        return
    import sys

    if not sys.stdin.isatty():
        raise UsageError(f"would {what}, and there is nobody to ask", hint="the same command with --yes")
    typer.confirm(f"{what[0].upper()}{what[1:]}?", abort=True, err=True)
