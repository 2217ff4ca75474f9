"""How a serve is run on a node, whatever runs it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dsv41ctl.config import Cluster
from dsv41ctl.config.model import Node
from dsv41ctl.hosts import Command, Completed, Host, OnLine
from dsv41ctl.jsontypes import Json
from dsv41ctl.plan import Arm, mask_env

__all__ = ["PREBUILD_LIMIT_S", "Runtime", "ServeState", "fill", "prebuild_code"]

# The seed's build takes about a minute; a cold image pull comes on top.
PREBUILD_LIMIT_S = 1800.0
_PLACEHOLDER = re.compile(r"\{(rank|tp|port|head|model_dir|node)\}")


@dataclass(frozen=True)
class ServeState:
    """One rank as it is on its node now.

    Attributes:
        exists: there is a container (or an occupied slot), running or ended.
        start_id: tells this start from every other one.
        started_at: ISO 8601, UTC.
        environment: read back from the running process or its container.
        exit_status: of a serve that ended by itself.
    """

    running: bool
    exists: bool = False
    start_id: str | None = None
    started_at: str | None = None
    environment: Mapping[str, str] | None = None
    argv: tuple[str, ...] = ()
    exit_status: int | None = None
    pid: int | None = None

    def as_json(self) -> dict[str, Json]:
        """For JSON output; credentials masked."""
        environment: Json = None if self.environment is None else dict(mask_env(self.environment))
        return {
            "running": self.running,
            "exists": self.exists,
            "start_id": self.start_id,
            "started_at": self.started_at,
            "pid": self.pid,
            "exit_status": self.exit_status,
            "argv": list(self.argv),
            "environment": environment,
        }


class Runtime(Protocol):
    """What runs a serve. Command builders are pure; the rest goes through a host."""

    def prebuild_command(self, node: Node, home: str) -> Command:
        """Builds the reader's extension, and prints `overlay: PATH` and `ext: PATH`."""
        ...

    def start_command(self, node: Node, arm: Arm, home: str) -> Command:
        """Starts one rank."""
        ...

    def stop_command(self, node: Node, home: str) -> Command:
        """Stops one rank."""
        ...

    def arguments(self, node: Node, home: str) -> list[str]:
        """serve.command filled in: the end of the serve's argument vector."""
        ...

    def environment(self, node: Node, arm: Arm, home: str) -> dict[str, str]:
        """The whole environment that the runtime gives the serve."""
        ...

    def added(self, node: Node, arm: Arm, home: str) -> dict[str, str]:
        """The arm's variables as they must read back on this node."""
        ...

    def prebuild(self, host: Host, node: Node, *, timeout: float, on_line: OnLine | None = None) -> Completed:
        """Runs the prebuild to its end, whatever its status."""
        ...

    def start(self, host: Host, node: Node, arm: Arm) -> ServeState:
        """Starts one rank and reads it back; does not wait for readiness."""
        ...

    def stop(self, host: Host, node: Node) -> bool:
        """Stops one rank until it is gone; whether there was anything to stop."""
        ...

    def state(self, host: Host, node: Node) -> ServeState:
        """What is there now."""
        ...

    def logs(self, host: Host, node: Node) -> str:
        """The output of the current start alone; empty when there is none."""
        ...

    def image_file(self, host: Host) -> bytes:
        """The image's own engram.py."""
        ...

    def run_in_image(
        self,
        host: Host,
        node: Node,
        argv: Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        on_line: OnLine | None = None,
    ) -> Completed:
        """Runs the image's Python with these arguments and B's variables, apart from any serve."""
        ...


def fill(command: Sequence[str], cluster: Cluster, node: Node) -> list[str]:
    """Puts a node's values into serve.command; braces of anything else (JSON) stay as they are."""
    head = cluster.by_rank[0]
    local = head.connection.kind == "local"
    values = {
        "rank": str(node.rank),
        "tp": str(cluster.tp),
        "port": str(cluster.serve.port),
        "head": "127.0.0.1" if local else (head.connection.address or head.name),
        "model_dir": cluster.tables.model_dir,
        "node": node.name,
    }
    return [_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in command]


def prebuild_code(module: str) -> str:
    """What the image's Python runs to build the extension."""
    return f'\nimport {module} as e\nprint("overlay:", e.__file__); print("ext:", e._load_engram_remote_ext().__file__)'
