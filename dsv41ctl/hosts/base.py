"""What local and ssh hosts share: everything is one POSIX shell command over `_execute`."""

import hashlib
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Mapping

from dsv41ctl.errors import CommandFailed, HostError
from dsv41ctl.hosts.command import Command, masked, shown
from dsv41ctl.hosts.protocol import Completed, OnLine, expand_home

__all__ = ["ShellHost"]

FILE_LIMIT_S = 120.0
TREE_LIMIT_S = 600.0

# $1 path, $2 mode, $3 sha256. The temporary file is checked before it takes the name.
_PUT = """set -eu
dir=$(dirname -- "$1"); mkdir -p -- "$dir"
tmp=$(mktemp -- "$dir/.dsv41ctl.XXXXXXXX"); trap 'rm -f -- "$tmp"' EXIT
cat >"$tmp"
sum=$(sha256sum <"$tmp"); [ "${sum%% *}" = "$3" ] || { echo "arrived with sha256 ${sum%% *}" >&2; exit 76; }
chmod "$2" "$tmp"; sync "$tmp"; mv -fT -- "$tmp" "$1"; sync "$dir"
sha256sum <"$1"
"""

# Both paths are resolved on the host, so that no link leads out of the tree.
_REMOVE_TREE = """set -eu
[ -e "$1" ] || [ -L "$1" ] || exit 0
under=$(readlink -f -- "$2"); parent=$(readlink -f -- "$(dirname -- "$1")")
case "$parent/" in "$under"/*) ;; *) echo "$1 lies in $parent, outside $under" >&2; exit 77;; esac
[ "$under" != / ] || exit 77
rm -rf --one-file-system -- "$1"
[ ! -e "$1" ] && [ ! -L "$1" ]
"""

_SHA256_TREE = """set -eu
[ -d "$1" ] || exit 0
cd -- "$1"
find . -type f -exec sha256sum -z -- {} +
find . ! -type d ! -type f -printf 'special  %p\\0'
"""


class ShellHost(ABC):
    """A host with a POSIX shell and coreutils."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        """As the cluster file calls it."""
        return self._name

    @property
    @abstractmethod
    def home(self) -> str:
        """Home directory on the host."""

    @abstractmethod
    def _execute(
        self,
        command: Command,
        timeout: float,
        env: Mapping[str, str],
        stdin: bytes | None,
        on_line: OnLine | None,
    ) -> Completed:
        """Runs a command to its end whatever its status."""

    def close(self) -> None:  # noqa: B027
        """Lets go of connections."""

    def expand(self, path: str) -> str:
        """A path with a leading `~` taken as this host's home."""
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
        """Runs a command to its end; see `Host.run`."""
        done = self._execute(command, timeout, env or {}, stdin, on_line)
        if check and done.status != 0:
            raise self._failure(command, done)
        return done

    def put(self, data: bytes, path: str, mode: int = 0o644) -> None:
        """Writes a file: whole or not at all, read back on the far side."""
        target = self.expand(path)
        wanted = hashlib.sha256(data).hexdigest()
        done = self._script(_PUT, target, f"{mode:o}", wanted, stdin=data)
        if done.status != 0:
            raise self._file_failure("write", target, done)
        seen = done.stdout.split(maxsplit=1)[0] if done.stdout.strip() else "nothing"
        if seen != wanted:
            raise HostError(f"{target} reads back as {seen}, wanted {wanted}", host=self.name)

    def get(self, path: str) -> bytes:
        """A file's content."""
        target = self.expand(path)
        done = self._execute(("cat", "--", target), FILE_LIMIT_S, {}, None, None)
        if done.status != 0:
            raise self._file_failure("read", target, done)
        return done.raw

    def exists(self, path: str) -> bool:
        """Whether anything lies at this path."""
        done = self._script('[ -e "$1" ] || [ -L "$1" ]', self.expand(path))
        return done.status == 0

    def remove_file(self, path: str) -> None:
        """Removes one file; no error when there is none."""
        target = self.expand(path)
        done = self._execute(("rm", "-f", "--", target), FILE_LIMIT_S, {}, None, None)
        if done.status != 0:
            raise self._file_failure("remove", target, done)

    def remove_tree(self, path: str, *, under: str) -> None:
        """Removes a tree that lies below `under`; refuses every other path."""
        target, root = self.guarded(path, under)
        done = self._script(_REMOVE_TREE, target, root, limit=TREE_LIMIT_S)
        if done.status != 0:
            raise self._file_failure("remove", target, done)

    def guarded(self, path: str, under: str) -> tuple[str, str]:
        """Both paths expanded, when the first may be removed.

        Raises:
            HostError: empty, `/`, `~`, or not below `under`.
        """
        target = posixpath.normpath(self.expand(path)) if path else ""
        root = posixpath.normpath(self.expand(under)) if under else ""
        if target in ("", "/", ".", self.home) or root in ("", "/", "."):
            raise HostError(f"refuses to remove {path!r} below {under!r}", host=self.name)
        if not target.startswith("/") or not target.startswith(f"{root}/"):
            raise HostError(f"refuses to remove {target}: it is not below {root}", host=self.name)
        return target, root

    def sha256_tree(self, root: str) -> dict[str, str]:
        """Relative path -> sha256 of each file below a directory, in one command."""
        target = self.expand(root)
        done = self._script(_SHA256_TREE, target, limit=TREE_LIMIT_S)
        if done.status != 0:
            raise self._file_failure("read", target, done)
        found: dict[str, str] = {}
        for record in done.raw.decode("utf-8", "surrogateescape").split("\0"):
            if record:
                digest, path = record.split("  ", 1)
                found[path.removeprefix("./")] = digest
        return found

    def _script(self, script: str, *args: str, stdin: bytes | None = None, limit: float = FILE_LIMIT_S) -> Completed:
        return self._execute(("sh", "-c", script, "dsv41ctl", *args), limit, {}, stdin, None)

    def _failure(self, command: Command, done: Completed) -> HostError:
        output = done.stderr if done.stderr.strip() else done.stdout
        known = _known(output, done.status)
        if known is None:
            return CommandFailed(masked(command), done.status, output, host=self.name)
        what, hint = known
        return HostError(f"{what}: `{shown(command)}`: {_last(output)}", host=self.name, hint=hint)

    def _file_failure(self, verb: str, path: str, done: Completed) -> HostError:
        known = _known(done.stderr, done.status)
        what, hint = known if known else (f"cannot {verb}", None)
        return HostError(f"{what}: {verb} {path}: {_last(done.stderr)}", host=self.name, hint=hint)


def _last(output: str) -> str:
    lines = [line for line in output.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def _known(output: str, status: int) -> tuple[str, str | None] | None:
    """The failures that deserve words of their own, and what to do."""
    text = output.lower()
    if "no space left on device" in text or "disk quota exceeded" in text:
        return "disk full", "free space on the host (df -h), then run the same command again"
    if status == 127 or "command not found" in text:
        return "command not found", None
    if "permission denied" in text or "operation not permitted" in text:
        return "permission denied", "check owner and mode on the host (ls -ld)"
    return None
