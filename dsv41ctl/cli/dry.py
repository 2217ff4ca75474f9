"""What `plan` and a rollout's `--dry-run` print: steps with their commands, the environment, the overlay's diff."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from dsv41ctl.cli.context import Json, emit, options

if TYPE_CHECKING:
    from rich.console import Group

    from dsv41ctl.apply import Outcome
    from dsv41ctl.config import Cluster

__all__ = ["render_rollback", "render_rollout"]


def render_rollout(ctx: typer.Context, cluster: "Cluster") -> None:
    """Everything that a rollout would change, in its order."""
    from dsv41ctl.apply import open_session, prebuild, server_build, server_start, stage, start, stop

    with open_session(cluster, "plan", dry_run=True, offline=options(ctx).offline) as session:
        outcomes = [
            server_build(session),
            server_start(session),
            stage(session),
            stop(session),
            prebuild(session, force=True),
            start(session, "B"),
        ]
    _emit(ctx, cluster, outcomes)


def render_rollback(ctx: typer.Context, cluster: "Cluster", *, purge: bool) -> None:
    """Everything that a rollback would change."""
    from dsv41ctl.apply import open_session, stage, start

    with open_session(cluster, "rollback", dry_run=True, offline=options(ctx).offline) as session:
        outcomes = [start(session, "A")]
        if purge:
            outcomes.append(stage(session, purge=True))
    _emit(ctx, cluster, outcomes)


def _emit(ctx: typer.Context, cluster: "Cluster", outcomes: "Iterable[Outcome]") -> None:
    from dsv41ctl.plan import docker_env, render_env

    listed = list(outcomes)
    environment = docker_env(cluster, "B")
    steps: list[Json] = [outcome.as_json() for outcome in listed]
    document: dict[str, Json] = {"schema": 1, "cluster": cluster.name, "environment": dict(environment), "verbs": steps}
    emit(ctx, document, lambda: _view(listed, render_env(environment)))


def _view(outcomes: "list[Outcome]", environment: str) -> "Group":
    from rich.console import Group, RenderableType
    from rich.text import Text

    parts: list[RenderableType] = []
    for outcome in outcomes:
        parts.append(Text(f"\n{outcome.verb}", style="bold"))
        for step in outcome.steps:
            parts.append(Text(f"  {step.word.value:<12} {step.host}: {step.title}"))
            if step.command:
                parts.append(Text(f"               $ {step.command}", style="dim"))
            if step.detail:
                parts.extend(Text(f"               {line}", style="dim") for line in step.detail.splitlines())
    parts.append(Text("\nDOCKER_ENV of B", style="bold"))
    parts.append(Text(environment))
    return Group(*parts)
