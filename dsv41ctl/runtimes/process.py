"""A serve as plain processes on the node: the embedded lab. The image is a directory of Python packages."""

import json
import posixpath
import sys
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from dsv41ctl.config import Cluster
from dsv41ctl.config.model import Node
from dsv41ctl.errors import HostError
from dsv41ctl.hosts import Command, Completed, Host, OnLine, expand_home, pair
from dsv41ctl.lab.layout import IMAGE_SOURCE, LabLayout
from dsv41ctl.plan import Arm, docker_env, expand_env, prebuild_env, serve_env
from dsv41ctl.runtimes.protocol import ServeState, fill, prebuild_code

__all__ = ["ProcessRuntime", "image_root"]

_SLOT = Path(__file__).resolve().parent / "slot.py"
_ASK_S = 30.0
_GRACE_S = 20.0


def image_root(cluster: Cluster) -> Path:
    """The lab's installed image, or the one that ships."""
    if cluster.lab is not None:
        installed = LabLayout(Path(cluster.lab.root).expanduser()).image
        if installed.is_dir():
            return installed
    return IMAGE_SOURCE


class ProcessRuntime:
    """Runs the image directory's Python with the operator's interpreter.

    Args:
        cluster: the cluster file.
        interpreter: the image's Python.
        image: the image's directory.
    """

    def __init__(self, cluster: Cluster, *, interpreter: str | None = None, image: Path | None = None) -> None:
        self._cluster = cluster
        self._python = interpreter or sys.executable
        self._image = image or image_root(cluster)

    def prebuild_command(self, node: Node, home: str) -> Command:
        """The seed's step 2 without a container."""
        del node
        return self._python_command(prebuild_env(self._cluster), home, "-c", prebuild_code(self._cluster.image.module))

    def start_command(self, node: Node, arm: Arm, home: str) -> Command:
        """What the slot runs, as one command to read."""
        environment = self.environment(node, arm, home)
        pairs = tuple(pair(name, value) for name, value in environment.items())
        return ("env", *pairs, *self._argv(node, home))

    def stop_command(self, node: Node, home: str) -> Command:
        """SIGTERM to the process group, SIGKILL after the stop timeout."""
        del node
        return self._slot_command("stop", home, f"{self._cluster.serve.stop_timeout_s:g}")

    def arguments(self, node: Node, home: str) -> list[str]:
        """The end of the serve's argument vector."""
        return [expand_home(word, home) for word in fill(self._cluster.serve.command, self._cluster, node)]

    def environment(self, node: Node, arm: Arm, home: str) -> dict[str, str]:
        """The whole environment that the runtime gives the serve."""
        del node
        return self._with_image(serve_env(self._cluster, arm), home)

    def added(self, node: Node, arm: Arm, home: str) -> dict[str, str]:
        """The arm's variables as they must read back on this node."""
        del node
        wanted = docker_env(self._cluster, arm)
        return self._with_image(wanted, home) if wanted else {}

    def prebuild(self, host: Host, node: Node, *, timeout: float, on_line: OnLine | None = None) -> Completed:
        """Runs the prebuild to its end, whatever its status."""
        return host.run(self.prebuild_command(node, host.home), timeout=timeout, check=False, on_line=on_line)

    def start(self, host: Host, node: Node, arm: Arm) -> ServeState:
        """Starts one rank and reads it back."""
        wanted = {
            "start_id": uuid.uuid4().hex[:12],
            "started_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "argv": self._argv(node, host.home),
            "env": self.environment(node, arm, host.home),
            "cwd": host.home,
        }
        return _parse(self._slot(host, "start", stdin=json.dumps(wanted).encode()))

    def stop(self, host: Host, node: Node) -> bool:
        """Stops one rank until its process group is gone."""
        del node
        limit = self._cluster.serve.stop_timeout_s
        found = self._slot(host, "stop", f"{limit:g}", timeout=limit + _GRACE_S)
        return bool(found.get("stopped"))

    def state(self, host: Host, node: Node) -> ServeState:
        """What the slot holds."""
        del node
        return _parse(self._slot(host, "state"))

    def logs(self, host: Host, node: Node) -> str:
        """The output of the current start alone."""
        del node
        return host.run(self._slot_command("logs", host.home), timeout=_ASK_S).stdout

    def image_file(self, host: Host) -> bytes:
        """The image's own engram.py."""
        return host.get(str(self._image / self._cluster.image.engram_path))

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
        """Runs the image's Python apart from any serve."""
        del node
        wanted = serve_env(self._cluster, "B") | dict(env or {})
        words = [expand_home(word, host.home) for word in argv]
        command = self._python_command(wanted, host.home, *words)
        return host.run(command, timeout=timeout, stdin=stdin, check=False, on_line=on_line)

    def _argv(self, node: Node, home: str) -> list[str]:
        return [self._python, *self.arguments(node, home)]

    def _python_command(self, env: Mapping[str, str], home: str, *args: str) -> Command:
        pairs = tuple(pair(name, value) for name, value in self._with_image(env, home).items())
        return ("env", *pairs, self._python, *args)

    def _with_image(self, env: Mapping[str, str], home: str) -> dict[str, str]:
        """The image's packages come after the staged tree, as site-packages do in a container."""
        expanded = expand_env(env, home)
        before = expanded.get("PYTHONPATH")
        expanded["PYTHONPATH"] = f"{before}:{self._image}" if before else str(self._image)
        return expanded

    def _directory(self, home: str) -> str:
        return posixpath.join(home, "run", self._cluster.serve.container)

    def _slot_command(self, verb: str, home: str, *args: str) -> Command:
        # Isolated: nothing of the environment, no site packages, so that it starts at once.
        return (self._python, "-I", "-S", str(_SLOT), verb, self._directory(home), *args)

    def _slot(
        self, host: Host, verb: str, *args: str, timeout: float = _ASK_S, stdin: bytes | None = None
    ) -> dict[str, object]:
        done = host.run(self._slot_command(verb, host.home, *args), timeout=timeout, stdin=stdin, check=False)
        try:
            found = json.loads(done.stdout)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise HostError(f"slot {verb} failed: {done.stderr.strip() or 'no output'}", host=host.name)
        if done.status != 0:
            raise HostError(f"serve cannot {verb}: {found.get('problem')}", host=host.name, hint="dsv41ctl status")
        return found


def _parse(found: Mapping[str, object]) -> ServeState:
    environment = found.get("environment")
    argv = found.get("argv")
    status = found.get("exit_status")
    pid = found.get("pid")
    return ServeState(
        running=bool(found.get("running")),
        exists=bool(found.get("exists")),
        start_id=_text(found.get("start_id")),
        started_at=_text(found.get("started_at")),
        environment={str(name): str(value) for name, value in environment.items()}
        if isinstance(environment, dict)
        else None,
        argv=tuple(str(word) for word in argv) if isinstance(argv, list) else (),
        exit_status=status if isinstance(status, int) else None,
        pid=pid if isinstance(pid, int) else None,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
