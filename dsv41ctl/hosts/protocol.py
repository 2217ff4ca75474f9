"""What every host can do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dsv41ctl.hosts.command import Command

__all__ = ["Completed", "Host", "OnLine", "expand_home"]

OnLine = Callable[[str], None]


@dataclass(frozen=True)
class Completed:
    """A command that ended.

    Attributes:
        status: exit status; negative: the signal that ended it.
        raw: stdout as bytes, for content that is not text.
    """

    status: int
    stdout: str
    stderr: str
    raw: bytes = b""


def expand_home(path: str, home: str) -> str:
    """Puts `home` in place of a leading `~`."""
    if path == "~":
        return home
    return f"{home}/{path[2:]}" if path.startswith("~/") else path


class Host(Protocol):
    """A machine, or a directory that stands for one."""

    @property
    def name(self) -> str:
        """As the cluster file calls it."""
        ...

    @property
    def home(self) -> str:
        """Home directory on the host; `$HOME` where nothing may be asked."""
        ...

    def expand(self, path: str) -> str:
        """A path with a leading `~` taken as this host's home."""
        ...

    def run(
        self,
        command: Command,
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        check: bool = True,
        on_line: OnLine | None = None,
    ) -> Completed:
        """Runs a command to its end, in the home directory.

        Args:
            command: its pieces.
            timeout: wall-clock limit in seconds.
            env: added to a clean environment.
            stdin: its input; nothing when None.
            check: raise when it ends with another status than 0.
            on_line: called with each line of output (both streams) as it comes.

        Raises:
            CommandFailed: ended with another status than 0.
            CommandTimeout: did not end in time.
            HostUnreachable: no connection.
            HostError: out of space, permission denied, no such command.
        """
        ...

    def put(self, data: bytes, path: str, mode: int = 0o644) -> None:
        """Writes a file: whole or not at all, read back on the far side. Parents are made."""
        ...

    def get(self, path: str) -> bytes:
        """A file's content."""
        ...

    def exists(self, path: str) -> bool:
        """Whether anything lies at this path."""
        ...

    def remove_file(self, path: str) -> None:
        """Removes one file; no error when there is none."""
        ...

    def remove_tree(self, path: str, *, under: str) -> None:
        """Removes a tree that lies below `under`; refuses every other path. No error when there is none."""
        ...

    def sha256_tree(self, root: str) -> dict[str, str]:
        """Relative path -> sha256 of each file below a directory; `special` for what is no regular file."""
        ...

    def close(self) -> None:
        """Lets go of connections."""
        ...
