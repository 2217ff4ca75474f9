"""What is on the nodes and table hosts now. Only reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from pydantic import ValidationError

from dsv41ctl.apply.serverproc import server_process
from dsv41ctl.apply.session import Session
from dsv41ctl.checks.status import ServerStatus
from dsv41ctl.config import Cluster
from dsv41ctl.config.model import Node, TableHost
from dsv41ctl.errors import Dsv41Error
from dsv41ctl.hosts import Host, gather
from dsv41ctl.jsontypes import Json
from dsv41ctl.plan import OVERLAY, STAGED, Staged, arm_of, server_binary, server_paths
from dsv41ctl.runtimes import ServeState

__all__ = [
    "ClusterStatus",
    "NodeStatus",
    "ServerState",
    "cluster_state",
    "healthy",
    "observe_node",
    "server_state",
    "server_status",
    "status",
]

_ASK_S = 30.0
_HEALTH_S = 3.0


@dataclass(frozen=True)
class NodeStatus:
    """One node.

    Attributes:
        state: None when it could not be read.
        arm: `A`, `B` or `other` by the serve's real environment; None when nothing runs.
        staged: whether a staged tree is there.
        overlay_sha256: of the overlay file that lies on the node.
        overlay_matches: whether every staged file is what staged.json says.
        problem: why something could not be read.
    """

    node: str
    rank: int
    state: ServeState | None
    arm: str | None = None
    staged: bool | None = None
    overlay_sha256: str | None = None
    overlay_matches: bool | None = None
    problem: str | None = None

    def as_json(self) -> dict[str, Json]:
        """For JSON output."""
        return {
            "node": self.node,
            "rank": self.rank,
            "running": None if self.state is None else self.state.running,
            "arm": self.arm,
            "start": None if self.state is None else self.state.as_json(),
            "staged": self.staged,
            "overlay_sha256": self.overlay_sha256,
            "overlay_matches": self.overlay_matches,
            "problem": self.problem,
        }


@dataclass(frozen=True)
class ServerState:
    """One table server.

    Attributes:
        running: None when it could not be read.
        status: its status document; None when it gives none.
        document: the same as it was printed.
    """

    host: str
    running: bool | None
    pid: int | None = None
    status: ServerStatus | None = None
    document: Json = None
    problem: str | None = None

    def as_json(self) -> dict[str, Json]:
        """For JSON output."""
        return {
            "host": self.host,
            "running": self.running,
            "pid": self.pid,
            "problem": self.problem,
            "status": self.document,
        }


@dataclass(frozen=True)
class ClusterStatus:
    """The whole cluster.

    Attributes:
        state: `A`, `B`, `stopped`, `mixed`, or `unknown` when a node could not be read.
        ready: whether the serve answers; None when nothing runs.
        repair: the command that repairs a mixed state.
    """

    state: str
    nodes: tuple[NodeStatus, ...]
    servers: tuple[ServerState, ...]
    ready: bool | None = None
    repair: str | None = None

    def as_json(self) -> dict[str, Json]:
        """Schema 1."""
        return {
            "schema": 1,
            "state": self.state,
            "ready": self.ready,
            "repair": self.repair,
            "nodes": [node.as_json() for node in self.nodes],
            "servers": [server.as_json() for server in self.servers],
        }


def observe_node(session: Session, node: Node) -> NodeStatus:
    """One node as it is; what cannot be read becomes its `problem`."""
    host = session.node_host(node)
    try:
        state = session.runtime.state(host, node)
    except Dsv41Error as error:
        return NodeStatus(node.name, node.rank, None, problem=error.message)
    arm = None
    if state.running and state.environment is not None:
        arm = arm_of(state.environment, session.runtime.added(node, "B", host.home))
    try:
        tree = host.sha256_tree(session.cluster.paths.stage)
        staged = Staged.parse(host.get(f"{session.cluster.paths.stage}/{STAGED}")) if STAGED in tree else None
    except Dsv41Error as error:
        return NodeStatus(node.name, node.rank, state, arm, problem=error.message)
    return NodeStatus(
        node=node.name,
        rank=node.rank,
        state=state,
        arm=arm,
        staged=staged is not None,
        overlay_sha256=tree.get(OVERLAY),
        overlay_matches=None if staged is None else _matches(staged.files, tree),
    )


def _matches(wanted: Mapping[str, str], tree: Mapping[str, str]) -> bool:
    return all(tree.get(path) == digest for path, digest in wanted.items())


def cluster_state(nodes: tuple[NodeStatus, ...]) -> tuple[str, str | None]:
    """The state of the whole, and the command that repairs it. Pure."""
    if any(node.state is None for node in nodes):
        return "unknown", None
    running = [node for node in nodes if node.state is not None and node.state.running]
    if not running:
        return "stopped", None
    arms = {node.arm for node in running}
    if len(running) == len(nodes) and len(arms) == 1:
        arm = next(iter(arms))
        if arm in ("A", "B"):
            return arm, None
    # A is the state that needs nothing else to be right; B is wanted only where all that runs is B.
    wanted = "B" if arms <= {"B", "other"} else "A"
    return "mixed", f"dsv41ctl start --arm {wanted}"


def healthy(cluster: Cluster) -> bool:
    """Whether the serve answers /health."""
    try:
        answer = httpx.get(f"{cluster.serve.url}/health", timeout=_HEALTH_S, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return answer.status_code == httpx.codes.OK


def server_state(host: Host, entry: TableHost) -> ServerState:
    """One table server as it is.

    Raises:
        HostError: the host cannot be read.
    """
    process = server_process(host, entry)
    if process is None:
        return ServerState(entry.name, running=False)
    control = server_paths(entry, host.home).control
    command = (server_binary(entry, host.home), "status", "--control", control, "--json")
    done = host.run(command, timeout=_ASK_S, check=False)
    if done.status != 0:
        problem = (done.stderr.strip() or done.stdout.strip() or f"status {done.status}").splitlines()[-1]
        return ServerState(entry.name, running=True, pid=process.pid, problem=problem)
    try:
        document: Json = json.loads(done.stdout)
        parsed = ServerStatus.model_validate(document)
    except (ValueError, ValidationError) as error:
        problem = f"its status document cannot be read: {str(error).splitlines()[0]}"
        return ServerState(entry.name, running=True, pid=process.pid, problem=problem)
    return ServerState(entry.name, running=True, pid=process.pid, status=parsed, document=document)


def server_status(session: Session) -> tuple[ServerState, ...]:
    """All table servers; a host that cannot be read is an entry with its problem."""
    found = gather(session.table_hosts, lambda host: server_state(host, session.table_entry(host.name)))
    return tuple(
        result if isinstance(result, ServerState) else ServerState(name, None, problem=_problem(result))
        for name, result in found.items()
    )


def observe_nodes(session: Session) -> tuple[NodeStatus, ...]:
    """All nodes in rank order, at once."""
    found = gather(session.node_hosts, lambda host: observe_node(session, session.node(host.name)))
    return tuple(
        result
        if isinstance(result, NodeStatus)
        else NodeStatus(name, session.node(name).rank, None, problem=_problem(result))
        for name, result in found.items()
    )


def status(session: Session) -> ClusterStatus:
    """The whole cluster as it is."""
    nodes = observe_nodes(session)
    servers = server_status(session)
    state, repair = cluster_state(nodes)
    running = any(node.state is not None and node.state.running for node in nodes)
    return ClusterStatus(state, nodes, servers, ready=healthy(session.cluster) if running else None, repair=repair)


def _problem(error: Exception) -> str:
    return error.message if isinstance(error, Dsv41Error) else f"{type(error).__name__}: {error}"
