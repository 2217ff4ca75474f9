"""A serve in a Docker container, through the docker command on the node."""

import json
from collections.abc import Mapping, Sequence

from dsv41ctl.config import Cluster
from dsv41ctl.config.model import Node
from dsv41ctl.errors import ConfigError, HostError
from dsv41ctl.hosts import Command, Completed, Host, OnLine, expand_home, pair
from dsv41ctl.plan import Arm, docker_env, prebuild_env, serve_env
from dsv41ctl.runtimes.protocol import ServeState, fill, prebuild_code

__all__ = ["DockerRuntime"]

_ASK_S = 60.0
_RUN_S = 600.0


class DockerRuntime:
    """Runs the cluster's image with docker.

    Args:
        cluster: the cluster file.

    Raises:
        ConfigError: a path of the container is not absolute.
    """

    def __init__(self, cluster: Cluster) -> None:
        if not cluster.paths.cache_in_container.startswith("/"):
            raise ConfigError("paths.cache_in_container must be absolute: it is a path inside the container")
        self._cluster = cluster
        self._name = cluster.serve.container

    def prebuild_command(self, node: Node, home: str) -> Command:
        """The seed's step 2."""
        del node
        return (
            *("docker", "run", "--rm", "--gpus", "all", "--device", "/dev/infiniband"),
            *self._cache(home),
            *_environment(prebuild_env(self._cluster)),
            *("--entrypoint", "python3", self._cluster.image.reference),
            *("-c", prebuild_code(self._cluster.image.module)),
        )

    def start_command(self, node: Node, arm: Arm, home: str) -> Command:
        """`docker run -d`, the same for both arms but for B's variables."""
        serve = self._cluster.serve
        return (
            *("docker", "run", "-d", "--name", self._name),
            *self._machine(home),
            *_environment(serve_env(self._cluster, arm)),
            *serve.docker_args,
            self._cluster.image.reference,
            *self.arguments(node, home),
        )

    def stop_command(self, node: Node, home: str) -> Command:
        """`docker rm -f` follows it."""
        del node, home
        return ("docker", "stop", "-t", f"{self._cluster.serve.stop_timeout_s:.0f}", self._name)

    def arguments(self, node: Node, home: str) -> list[str]:
        """The end of the serve's argument vector."""
        del home
        return fill(self._cluster.serve.command, self._cluster, node)

    def environment(self, node: Node, arm: Arm, home: str) -> dict[str, str]:
        """The whole environment that the runtime gives the serve."""
        del node, home
        return serve_env(self._cluster, arm)

    def added(self, node: Node, arm: Arm, home: str) -> dict[str, str]:
        """The arm's variables as they must read back on this node."""
        del node, home
        return docker_env(self._cluster, arm)

    def prebuild(self, host: Host, node: Node, *, timeout: float, on_line: OnLine | None = None) -> Completed:
        """Runs the prebuild to its end, whatever its status."""
        return host.run(self.prebuild_command(node, host.home), timeout=timeout, check=False, on_line=on_line)

    def start(self, host: Host, node: Node, arm: Arm) -> ServeState:
        """Starts one rank and reads it back."""
        host.run(self.start_command(node, arm, host.home), timeout=_RUN_S)
        return self.state(host, node)

    def stop(self, host: Host, node: Node) -> bool:
        """Stops one rank until its container is gone."""
        if not self.state(host, node).exists:
            return False
        limit = self._cluster.serve.stop_timeout_s + _ASK_S
        host.run(self.stop_command(node, host.home), timeout=limit)
        host.run(("docker", "rm", "-f", self._name), timeout=_ASK_S)
        if self.state(host, node).exists:
            raise HostError(
                f"container {self._name} is still there after docker rm",
                host=host.name,
                hint=f"docker rm -f {self._name}",
            )
        return True

    def state(self, host: Host, node: Node) -> ServeState:
        """What `docker inspect` says."""
        del node
        done = host.run(("docker", "inspect", "--type", "container", self._name), timeout=_ASK_S, check=False)
        if done.status != 0:
            if "no such" in done.stderr.lower():
                return ServeState(running=False)
            raise HostError(f"docker inspect {self._name}: {done.stderr.strip() or 'no output'}", host=host.name)
        return parse_inspect(done.stdout, host.name)

    def logs(self, host: Host, node: Node) -> str:
        """The output of the current start alone."""
        state = self.state(host, node)
        if not state.exists or state.started_at is None:
            return ""
        script = 'exec docker logs --since "$1" "$2" 2>&1'
        return host.run(("sh", "-c", script, "dsv41ctl", state.started_at, self._name), timeout=_RUN_S).stdout

    def image_file(self, host: Host) -> bytes:
        """The image's own engram.py."""
        image = self._cluster.image
        return host.run(
            ("docker", "run", "--rm", "--entrypoint", "cat", image.reference, image.engram_path), timeout=_RUN_S
        ).raw

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
        """Runs the image's Python in a throw-away container."""
        del node
        wanted = serve_env(self._cluster, "B") | dict(env or {})
        command: Command = (
            *("docker", "run", "--rm", *(("-i",) if stdin is not None else ())),
            *self._machine(host.home),
            *_environment(wanted),
            *self._cluster.serve.docker_args,
            *("--entrypoint", "python3", self._cluster.image.reference, *argv),
        )
        return host.run(command, timeout=timeout, stdin=stdin, check=False, on_line=on_line)

    def _machine(self, home: str) -> tuple[str, ...]:
        """What a container sees of its node: network, GPU, NIC, cache, checkpoint."""
        return (
            *("--network", "host", "--ipc", "host", "--gpus", "all", "--device", "/dev/infiniband"),
            *("--ulimit", f"memlock={self._cluster.serve.memlock}"),
            *self._cache(home),
            *self._model(home),
        )

    def _cache(self, home: str) -> tuple[str, str]:
        paths = self._cluster.paths
        return "-v", f"{expand_home(paths.cache, home)}:{paths.cache_in_container}"

    def _model(self, home: str) -> tuple[str, ...]:
        model = expand_home(self._cluster.tables.model_dir, home)
        # The cluster file's own mount of the same place wins: docker refuses two.
        if any(f":{model}" in word for word in self._cluster.serve.docker_args):
            return ()
        return "-v", f"{model}:{model}:ro"


def _environment(env: Mapping[str, str]) -> Command:
    return tuple(piece for name, value in env.items() for piece in ("-e", pair(name, value)))


def parse_inspect(text: str, host: str) -> ServeState:
    """The state that a `docker inspect` document shows.

    Raises:
        HostError: not such a document.
    """
    try:
        document = json.loads(text)[0]
        state = document["State"]
        config = document["Config"]
        running = bool(state["Running"])
        return ServeState(
            running=running,
            exists=True,
            # A restarted container keeps its id: the time makes the start its own.
            start_id=f"{document['Id'][:12]}@{state['StartedAt']}",
            started_at=state["StartedAt"],
            environment=dict(entry.partition("=")[::2] for entry in config["Env"] or []),
            argv=(document["Path"], *document["Args"]),
            exit_status=None if running else int(state["ExitCode"]),
            pid=state.get("Pid") or None,
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise HostError(f"docker inspect printed what cannot be read: {error}", host=host) from error
