"""The one exception tree, and the one place where an exception becomes an exit code.

    Dsv41Error                 1  something failed
    ├── UsageError             2  the user's arguments
    │   └── ConfigError        2  the cluster file (file, line and key named)
    ├── CheckFailed            3  a check, gate or comparison says no
    ├── MixedState             4  hosts disagree, or a step was done on some of them only
    ├── Inconclusive           5  data that a verdict needs is missing
    ├── LeaseHeld              6  another operator is at work
    └── HostError              1  a host: unreachable, denied, out of space
        ├── HostUnreachable    1
        ├── CommandFailed      1
        └── CommandTimeout     1

KeyboardInterrupt maps to 130.
"""

from collections.abc import Sequence
from enum import IntEnum

__all__ = [
    "CheckFailed",
    "CommandFailed",
    "CommandTimeout",
    "ConfigError",
    "Dsv41Error",
    "Exit",
    "HostError",
    "HostUnreachable",
    "Inconclusive",
    "LeaseHeld",
    "MixedState",
    "UsageError",
    "exit_code",
]


class Exit(IntEnum):
    """Exit codes of every verb."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    CHECK_SAYS_NO = 3
    MIXED = 4
    INCONCLUSIVE = 5
    LEASE_HELD = 6
    INTERRUPTED = 130


class Dsv41Error(Exception):
    """Base of all expected failures.

    Args:
        message: what happened, with which value.
        host: the host that it happened on, if any.
        hint: the command to run next.
    """

    code = Exit.FAILED

    def __init__(self, message: str, *, host: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.host = host
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.host}: {self.message}" if self.host else self.message
        return f"{text} (next: {self.hint})" if self.hint else text


class UsageError(Dsv41Error):
    """The user's arguments do not fit."""

    code = Exit.USAGE


class ConfigError(UsageError):
    """The cluster file cannot be read or does not validate."""


class CheckFailed(Dsv41Error):
    """A check, a gate or a comparison says no."""

    code = Exit.CHECK_SAYS_NO


class MixedState(Dsv41Error):
    """Hosts disagree about the configuration, or a step was done on some of them only."""

    code = Exit.MIXED


class Inconclusive(Dsv41Error):
    """Data that a verdict needs is missing; never a pass."""

    code = Exit.INCONCLUSIVE


class LeaseHeld(Dsv41Error):
    """Another operator holds the lease."""

    code = Exit.LEASE_HELD


class HostError(Dsv41Error):
    """A host refused, or its state forbids the step."""


class HostUnreachable(HostError):
    """No connection to the host."""


class CommandFailed(HostError):
    """A command on a host ended with another status than wanted.

    Args:
        argv: the command as shown to a person (secrets masked).
        status: its exit status; negative: the signal that ended it.
        output: the end of its output.
    """

    def __init__(self, argv: Sequence[str], status: int, output: str, *, host: str, hint: str | None = None) -> None:
        shown = " ".join(argv)
        tail = output.strip().splitlines()[-1] if output.strip() else "no output"
        super().__init__(f"`{shown}` ended with status {status}: {tail}", host=host, hint=hint)
        self.argv = list(argv)
        self.status = status
        self.output = output


class CommandTimeout(HostError):
    """A command did not end within its wall-clock limit."""


def exit_code(error: BaseException) -> int:
    """The exit code for an exception that reached the top."""
    if isinstance(error, Dsv41Error):
        return int(error.code)
    if isinstance(error, KeyboardInterrupt):
        return int(Exit.INTERRUPTED)
    return int(Exit.FAILED)
