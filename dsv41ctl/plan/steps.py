"""Steps and actions: what a verb would do, as values that can be shown, compared and undone."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from dsv41ctl.hosts.command import Command, masked, shown

__all__ = [
    "Action",
    "Arm",
    "Nothing",
    "PutFile",
    "RemoveFile",
    "RemoveTree",
    "RestoreFile",
    "RunCommand",
    "StartServe",
    "Step",
    "StopServe",
    "Undo",
    "Word",
    "render_action",
]

Arm = Literal["A", "B"]


class Word(StrEnum):
    """The three words for a step."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    WOULD = "would change"


@dataclass(frozen=True)
class Nothing:
    """The state is already as wanted."""


@dataclass(frozen=True)
class PutFile:
    """Writes a file, whole or not at all."""

    path: str
    data: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class RemoveFile:
    """Removes one file."""

    path: str


@dataclass(frozen=True)
class RemoveTree:
    """Removes a tree below `under`."""

    path: str
    under: str


@dataclass(frozen=True)
class RunCommand:
    """Runs a command to its end."""

    command: Command
    timeout: float = 60.0


@dataclass(frozen=True)
class StartServe:
    """Starts one rank.

    Attributes:
        command: as the runtime would give it to the host; for showing.
    """

    node: str
    arm: Arm
    command: Command = ()


@dataclass(frozen=True)
class StopServe:
    """Stops one rank, until it is gone."""

    node: str
    command: Command = ()


@dataclass(frozen=True)
class RestoreFile:
    """Undo only: puts back what the file held before."""

    path: str


Action = Nothing | PutFile | RemoveFile | RemoveTree | RunCommand | StartServe | StopServe
Undo = RemoveFile | RestoreFile | RunCommand | StopServe


@dataclass(frozen=True)
class Step:
    """One step on one host.

    Attributes:
        state: `unchanged`, or `would change` as long as nobody has applied it.
        undo: how it is taken back; None when it is not.
        detail: one more fact for a person.
    """

    host: str
    title: str
    action: Action
    undo: Undo | None = None
    state: Word = Word.WOULD
    detail: str = ""

    @property
    def command(self) -> str | None:
        """The masked command, for steps that are one."""
        return render_action(self.action)

    @property
    def argv(self) -> list[str] | None:
        """The masked argument vector, for steps that are a command."""
        match self.action:
            case RunCommand(command=command) | StartServe(command=command) | StopServe(command=command):
                return masked(command) or None
        return None


def render_action(action: Action) -> str | None:
    """An action as one line to read."""
    match action:
        case PutFile(path=path, data=data):
            return f"put {len(data)} bytes to {path}"
        case RemoveFile(path=path):
            return f"rm -f {path}"
        case RemoveTree(path=path):
            return f"rm -rf {path}"
        case RunCommand(command=command) | StartServe(command=command) | StopServe(command=command):
            return shown(command) or None
        case Nothing():
            return None
