"""The table server's process on its host: found by its pid file, believed by its argument vector."""

from dataclasses import dataclass

from dsv41ctl.config.model import TableHost
from dsv41ctl.hosts import Host
from dsv41ctl.plan import server_paths

__all__ = ["ServerProcess", "server_process"]

_ASK_S = 30.0
# Prints nothing when there is no such process.
_PROBE = """pid=$(cat -- "$1" 2>/dev/null) || exit 0
case "$pid" in ''|*[!0-9]*) exit 0;; esac
[ -d "/proc/$pid" ] || exit 0
printf '%s\\0' "$pid"; cat "/proc/$pid/cmdline" 2>/dev/null || true
"""


@dataclass(frozen=True)
class ServerProcess:
    """A running engram_server of ours."""

    pid: int
    argv: tuple[str, ...]


def server_process(host: Host, entry: TableHost) -> ServerProcess | None:
    """The server that serves this control socket, if it runs.

    Raises:
        HostError: the host cannot be read.
    """
    paths = server_paths(entry, host.home)
    done = host.run(("sh", "-c", _PROBE, "dsv41ctl", paths.pid), timeout=_ASK_S)
    words = done.raw.decode("utf-8", "surrogateescape").split("\0")
    if len(words) < 3 or not words[0].isdigit():
        return None
    argv = tuple(words[1:-1] if words[-1] == "" else words[1:])
    # A pid file outlives a crash, and the number may be somebody else's by now.
    if "serve" not in argv or paths.control not in argv:
        return None
    return ServerProcess(int(words[0]), argv)
