"""A host that nothing reaches: it records what would run, and answers nothing."""

from collections.abc import Mapping

from dsv41ctl.errors import HostError
from dsv41ctl.hosts.command import Command, shown
from dsv41ctl.hosts.protocol import Completed, OnLine, expand_home

__all__ = ["RecordingHost"]


class RecordingHost:
    """Stands for a host with --offline. Anything that needs an answer is an error that says so.

    Attributes:
        commands: what would have run, in order.
        files: path -> content that would have been written.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.home = "$HOME"
        self.commands: list[Command] = []
        self.files: dict[str, bytes] = {}

    def expand(self, path: str) -> str:
        """A path with a leading `~` shown as `$HOME`."""
        return expand_home(path, self.home)

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
        """Records the command; there is no answer."""
        del timeout, env, stdin, check, on_line
        self.commands.append(command)
        raise self._silent(f"run `{shown(command)}`")

    def put(self, data: bytes, path: str, mode: int = 0o644) -> None:
        """Records the file."""
        del mode
        self.files[self.expand(path)] = data

    def get(self, path: str) -> bytes:
        """There is nothing to read."""
        raise self._silent(f"read {self.expand(path)}")

    def exists(self, path: str) -> bool:
        """There is nothing to look at."""
        raise self._silent(f"look for {self.expand(path)}")

    def remove_file(self, path: str) -> None:
        """Records the removal."""
        self.commands.append(("rm", "-f", "--", self.expand(path)))

    def remove_tree(self, path: str, *, under: str) -> None:
        """Records the removal."""
        del under
        self.commands.append(("rm", "-rf", "--", self.expand(path)))

    def sha256_tree(self, root: str) -> dict[str, str]:
        """There is nothing to read."""
        raise self._silent(f"read {self.expand(root)}")

    def close(self) -> None:
        """Nothing is open."""

    def _silent(self, what: str) -> HostError:
        return HostError(f"offline: cannot {what}", host=self.name, hint="the same command without --offline")
