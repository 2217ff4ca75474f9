"""Looks at every node and table server around one probe request. All I/O of `check` is here."""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx

from dsv41ctl.apply import Session, observe_node, server_status
from dsv41ctl.checks.evaluate import NodeSeen, ServerSeen
from dsv41ctl.checks.loglines import parse_log
from dsv41ctl.checks.status import ServerStatus
from dsv41ctl.config import Cluster
from dsv41ctl.errors import Dsv41Error
from dsv41ctl.hosts import gather

__all__ = ["Observed", "observe", "probe_request"]

# Text for the probe: long enough that both layers look up rows of every head.
_PROBE_PROMPT = "The table server answers from memory; the local shard answers when it does not. "
# How much later than LOG_S a counter line may come.
_LOG_SLACK_S = 3.0
_POLL_S = 0.2


@dataclass(frozen=True)
class Observed:
    """Everything that `check` judges."""

    nodes: Mapping[str, NodeSeen]
    servers: tuple[ServerSeen, ...]
    probe: str | None


def probe_request(cluster: Cluster, *, timeout: float = 60.0) -> str | None:
    """Sends one short completion.

    Returns:
        None when it was answered, else what went wrong.
    """
    base = cluster.serve.url
    try:
        with httpx.Client(base_url=base, timeout=timeout, trust_env=False) as client:
            model = cluster.serve.model or client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
            body = {
                "model": model,
                "prompt": f"{uuid.uuid4().hex} {_PROBE_PROMPT}",
                "max_tokens": 4,
                "temperature": 0,
                "cache_salt": uuid.uuid4().hex,
            }
            answer = client.post("/v1/completions", json=body)
    except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
        return f"{base}: {type(error).__name__}: {error}"
    if answer.status_code != httpx.codes.OK:
        return f"{base}: HTTP {answer.status_code}: {answer.text[:200]}"
    return None


def observe(session: Session, *, want_counters: bool) -> Observed:
    """Status before, probe, status after, then the nodes.

    Args:
        session: the run.
        want_counters: wait for the LOG_S lines that follow the probe (configuration B).
    """
    cluster = session.cluster
    before = {seen.host: seen for seen in server_status(session)}
    begun = {node.name: _counter_lines(session, node.name) for node in cluster.nodes} if want_counters else {}
    probe = probe_request(cluster)
    if want_counters and probe is None:
        deadline = time.monotonic() + cluster.remote.log_s + _LOG_SLACK_S
        tables = len(cluster.tables.layers)
        _wait(lambda: all(_counter_lines(session, name) >= lines + tables for name, lines in begun.items()), deadline)
    after = {seen.host: seen for seen in server_status(session)}
    by_name = {node.name: node for node in cluster.nodes}
    hosts = [session.node_host(node) for node in cluster.nodes]
    seen = gather(hosts, lambda host: _node(session, host.name))
    nodes = {
        name: result
        if isinstance(result, NodeSeen)
        else NodeSeen(name, None, problem=str(result).splitlines()[0] if str(result) else type(result).__name__)
        for name, result in seen.items()
        if name in by_name
    }
    servers = tuple(
        ServerSeen(
            host, _document(before.get(host)), _document(after.get(host)), getattr(after.get(host), "problem", None)
        )
        for host in after
    )
    return Observed(nodes, servers, probe)


def _document(state: object) -> ServerStatus | None:
    status = getattr(state, "status", None)
    return status if isinstance(status, ServerStatus) else None


def _node(session: Session, name: str) -> NodeSeen:
    node = next(node for node in session.cluster.nodes if node.name == name)
    seen = observe_node(session, node)
    if seen.state is None:
        return NodeSeen(name, None, problem=seen.problem)
    log: str | None = None
    if seen.state.running:
        try:
            log = session.runtime.logs(session.node_host(node), node)
        except Dsv41Error:
            log = None
    return NodeSeen(
        name,
        seen.state.running,
        environment=seen.state.environment,
        log=None if log is None else parse_log(log),
        overlay_sha256=seen.overlay_sha256,
        problem=seen.problem,
    )


def _counter_lines(session: Session, name: str) -> int:
    node = next(node for node in session.cluster.nodes if node.name == name)
    try:
        return parse_log(session.runtime.logs(session.node_host(node), node)).counter_lines
    except Dsv41Error:
        return 0


def _wait(done: Callable[[], bool], deadline: float) -> None:
    while not done() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
