"""The global options, and the two ways out: data to stdout, words to stderr."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dsv41ctl.jsontypes import Json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from dsv41ctl.config import Cluster

__all__ = ["GLOBAL_FLAGS", "GLOBAL_VALUES", "Json", "Options", "emit", "hoist", "note", "options", "stderr"]


_PIPE_WIDTH = 200

GLOBAL_FLAGS = frozenset({"--dry-run", "--offline", "--json", "--yes"})
GLOBAL_VALUES = frozenset({"--cluster"})


@dataclass(frozen=True)
class Options:
    """What was said before or after the verb.

    Attributes:
        cluster: path of the cluster file, or None when none was named.
        dry_run: render every step, change nothing.
        offline: open no connection at all; implies dry_run.
        json: one JSON document on stdout instead of a table.
        yes: do not ask before a destructive step.
    """

    cluster: Path | None = None
    dry_run: bool = False
    offline: bool = False
    json: bool = False
    yes: bool = False

    def load(self) -> "Cluster":
        """Reads the cluster file.

        Raises:
            UsageError: none was named.
            ConfigError: it does not validate.
        """
        from dsv41ctl.config import load_cluster
        from dsv41ctl.errors import UsageError

        if self.cluster is None:
            raise UsageError("no cluster file", hint="dsv41ctl --cluster FILE ... (or set DSV41_CLUSTER)")
        return load_cluster(self.cluster)


def options(ctx: typer.Context) -> Options:
    """The global options of this call."""
    found = ctx.find_object(Options)
    return found if found is not None else Options()


def hoist(argv: list[str]) -> list[str]:
    """Moves global options to the front, so that they may stand before or after the verb. `--` ends it."""
    front: list[str] = []
    rest: list[str] = []
    index = 0
    while index < len(argv):
        word = argv[index]
        if word == "--":
            rest.extend(argv[index:])
            break
        name, equals, _ = word.partition("=")
        if word in GLOBAL_FLAGS or (equals and name in GLOBAL_VALUES):
            front.append(word)
        elif word in GLOBAL_VALUES:
            front.extend(argv[index : index + 2])
            index += 1
        else:
            rest.append(word)
        index += 1
    return front + rest


def stderr() -> "Console":
    """A console on stderr: progress, warnings, hints."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """One line for a person, on stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def emit(ctx: typer.Context, data: Json, render: "Callable[[], RenderableType | str]") -> None:
    """Prints a result on stdout: JSON with --json, else what `render` gives (only called then)."""
    if options(ctx).json:
        print(json.dumps(data, indent=2, sort_keys=False, ensure_ascii=False))  # noqa: T201
        return
    shown = render()
    if isinstance(shown, str):
        print(shown)  # noqa: T201
        return
    from rich.console import Console

    # A pipe has no width: identities and paths must reach grep whole.
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    Console(highlight=False, soft_wrap=False, width=width).print(shown)
