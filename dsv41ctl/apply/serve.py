"""`start` and `stop`: workers first, then the head; ready when it answers, failed when a rank dies."""

import time
from collections.abc import Mapping

from dsv41ctl.apply.engine import plain, transaction
from dsv41ctl.apply.extension import prebuilt_problem
from dsv41ctl.apply.observe import NodeStatus, healthy, observe_nodes, server_status
from dsv41ctl.apply.outcome import Outcome
from dsv41ctl.apply.session import Session
from dsv41ctl.config.model import Node
from dsv41ctl.errors import Dsv41Error, HostError, Inconclusive
from dsv41ctl.hosts import gather, parallel
from dsv41ctl.plan import Arm, Nothing, StartServe, Step, StopServe, Word, arm_of

__all__ = ["start", "stop"]

_POLL_S = 0.25
_STATE_EVERY_S = 1.0
_TAIL_LINES = 12


def start(session: Session, arm: Arm) -> Outcome:
    """Brings the serve up in configuration `arm` on every node.

    Raises:
        HostError: B is not staged or not prebuilt, a rank died, or the serve did not get ready.
    """
    verb = f"start --arm {arm}"
    if session.offline:
        with transaction(session) as offline:
            offline.apply(_start_steps(session, arm, [*_workers(session), *_head(session)]))
        return Outcome(verb, tuple(offline.results))
    nodes = observe_nodes(session)
    _readable(nodes)
    if all(_as_wanted(session, node, arm) for node in nodes):
        return _already(session, verb, nodes)
    if arm == "B" and not session.dry_run:
        parallel(session.node_hosts, lambda host: _refuse_b(session, nodes, host.name))
        _refuse_without_server(session)
    with transaction(session) as running:
        running.apply(_stop_steps(session, nodes))
        if not session.dry_run:
            _nobody_else(session)
        running.apply(_start_steps(session, arm, _workers(session)))
        running.apply(_start_steps(session, arm, _head(session)))
        if not session.dry_run:
            _wait_ready(session)
            parallel(session.node_hosts, lambda host: _read_back(session, host.name, arm))
    return Outcome(verb, tuple(running.results))


def stop(session: Session) -> Outcome:
    """Stops the serve on every node, head first, until it is gone there.

    Raises:
        HostError: a node could not be read or stopped.
    """
    with transaction(session) as running:
        if session.offline:
            steps = [_stop_step(session, node) for node in session.cluster.by_rank]
        else:
            nodes = observe_nodes(session)
            _readable(nodes)
            steps = _stop_steps(session, nodes, show_stopped=True)
        running.apply(steps)
    return Outcome("stop", tuple(running.results))


def _workers(session: Session) -> list[Node]:
    return [node for node in session.cluster.by_rank if node.rank > 0]


def _head(session: Session) -> list[Node]:
    return [node for node in session.cluster.by_rank if node.rank == 0]


def _start_steps(session: Session, arm: Arm, nodes: list[Node]) -> list[Step]:
    steps = []
    for node in nodes:
        command = session.runtime.start_command(node, arm, session.node_host(node).home)
        title = f"start rank {node.rank} in configuration {arm}"
        steps.append(Step(node.name, title, StartServe(node.name, arm, command), StopServe(node.name)))
    return steps


def _stop_step(session: Session, node: Node) -> Step:
    command = session.runtime.stop_command(node, session.node_host(node).home)
    # Not undone: a start takes minutes, and what to start next is the operator's choice.
    return Step(node.name, f"stop rank {node.rank}", StopServe(node.name, command))


def _stop_steps(session: Session, nodes: tuple[NodeStatus, ...], *, show_stopped: bool = False) -> list[Step]:
    steps = []
    for seen in nodes:
        node = session.node(seen.node)
        if seen.state is not None and seen.state.exists:
            steps.append(_stop_step(session, node))
        elif show_stopped:
            steps.append(Step(seen.node, f"stop rank {seen.rank}", Nothing(), None, Word.UNCHANGED, "nothing runs"))
    return steps


def _readable(nodes: tuple[NodeStatus, ...]) -> None:
    for node in nodes:
        if node.state is None:
            raise Inconclusive(f"cannot be read: {node.problem}", host=node.node, hint="dsv41ctl status")


def _as_wanted(session: Session, seen: NodeStatus, arm: Arm) -> bool:
    """Whether a rank runs already, with the environment and the arguments that a start would give it."""
    if seen.state is None or not seen.state.running or seen.arm != arm:
        return False
    node = session.node(seen.node)
    home = session.node_host(node).home
    wanted = session.runtime.environment(node, arm, home)
    environment = seen.state.environment or {}
    words = session.runtime.arguments(node, home)
    return _includes(environment, wanted) and (not words or list(seen.state.argv[-len(words) :]) == words)


def _includes(environment: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(environment.get(name) == value for name, value in wanted.items())


def _already(session: Session, verb: str, nodes: tuple[NodeStatus, ...]) -> Outcome:
    if not session.dry_run:
        _wait_ready(session)
    with transaction(session) as running:
        for seen in nodes:
            detail = f"start {seen.state.start_id} since {seen.state.started_at}" if seen.state else ""
            title = f"rank {seen.rank} runs in configuration {seen.arm}"
            running.add(plain(Step(seen.node, title, Nothing(), None, Word.UNCHANGED, detail)))
    return Outcome(verb, tuple(running.results))


def _refuse_b(session: Session, nodes: tuple[NodeStatus, ...], name: str) -> None:
    seen = next(node for node in nodes if node.node == name)
    if not seen.staged:
        raise HostError("nothing is staged", host=name, hint="dsv41ctl stage")
    if not seen.overlay_matches:
        raise HostError("the staged files are not what was staged", host=name, hint="dsv41ctl stage")
    problem = prebuilt_problem(session, session.hosts[name])
    if problem is not None:
        raise HostError(problem, host=name, hint="dsv41ctl prebuild")


def _refuse_without_server(session: Session) -> None:
    """With REQUIRED=1 a serve without its table server fails minutes later; say so now where it is known."""
    if not session.cluster.remote.required:
        return
    for server in server_status(session):
        if server.running is False or (server.status is not None and not server.status.ready):
            word = "does not run" if server.running is False else "is not ready"
            raise HostError(f"the table server {word}", host=server.host, hint="dsv41ctl server start")


def _nobody_else(session: Session) -> None:
    if healthy(session.cluster):
        raise HostError(
            f"{session.cluster.serve.url} answers although no rank of this cluster runs: another serve has the port"
        )


def _wait_ready(session: Session) -> None:
    """Polls /health until the deadline, and watches that no rank dies meanwhile."""
    limit = session.cluster.serve.ready_timeout_s
    deadline = time.monotonic() + limit
    looked = 0.0
    while not healthy(session.cluster):
        now = time.monotonic()
        if now > deadline:
            tails = "\n".join(_tail(session, node) for node in session.cluster.by_rank)
            raise HostError(
                f"the serve did not get ready within {limit:g} s at {session.cluster.serve.url}/health\n{tails}",
                hint="dsv41ctl status",
            )
        if now - looked >= _STATE_EVERY_S:
            _nobody_died(session)
            looked = now
        time.sleep(_POLL_S)
    _nobody_died(session)


def _nobody_died(session: Session) -> None:
    found = gather(session.node_hosts, lambda host: session.runtime.state(host, session.node(host.name)))
    for name, state in found.items():
        # An unreadable node is no dead rank: the deadline decides.
        if isinstance(state, Exception) or state.running:
            continue
        node = session.node(name)
        raise HostError(
            f"rank {node.rank} ended with status {state.exit_status} while starting\n{_tail(session, node)}",
            host=name,
            hint="fix it, then dsv41ctl start --arm A (or B)",
        )


def _tail(session: Session, node: Node) -> str:
    try:
        lines = session.runtime.logs(session.node_host(node), node).strip().splitlines()[-_TAIL_LINES:]
    except Dsv41Error as error:
        lines = [f"(its log cannot be read: {error.message})"]
    return "\n".join(f"  {node.name} | {line}" for line in lines or ["(its log is empty)"])


def _read_back(session: Session, name: str, arm: Arm) -> None:
    node = session.node(name)
    host = session.hosts[name]
    state = session.runtime.state(host, node)
    environment = state.environment or {}
    wanted = session.runtime.environment(node, arm, host.home)
    wrong = [key for key, value in wanted.items() if environment.get(key) != value]
    seen = arm_of(environment, session.runtime.added(node, "B", host.home))
    if not state.running or wrong or seen != arm:
        what = f"variables {', '.join(wrong)} read back otherwise" if wrong else f"reads back as {seen}"
        raise HostError(f"started in {arm}, but {what}", host=name, hint="dsv41ctl status")
