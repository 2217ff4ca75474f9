"""`check`, `verify rows` and `ident` over one session."""

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from dsv41ctl.apply import Session
from dsv41ctl.checks.evaluate import Report, Verdict, evaluate_a, evaluate_b
from dsv41ctl.checks.observe import observe
from dsv41ctl.checks.wanted import expected_b
from dsv41ctl.config.model import Node
from dsv41ctl.engram.manifest import Manifest, load_manifest
from dsv41ctl.errors import CommandFailed, Dsv41Error, Exit, UsageError
from dsv41ctl.hosts import Host, parallel
from dsv41ctl.plan import STAGED, Arm, Staged

__all__ = ["LayerRows", "Refusals", "RowsResult", "check", "ident", "operator_manifest", "verify_rows"]

_TOOLS = "offload/engram/spark/tools"
# The seed's whole-shard runs take minutes over a link; a tool that outlives this hangs.
_TOOL_TIMEOUT_S = 3600.0


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class LayerRows(_Model):
    """Rows of one table of one rank that were compared byte by byte."""

    layer: int
    rows_compared: int
    bad: int
    first_bad: list[int]
    corner_cases: int
    fallbacks: int


class Refusals(_Model):
    """The kinds of refusal that were tried on the server."""

    tried: int
    right: int


class RowsResult(_Model):
    """What verify_rows.py found on one node."""

    node: str = ""
    rank: int
    layers: list[LayerRows]
    refusals: Refusals | None = None
    seconds: float
    said: str = Field(default="", alias="verdict")
    error: str = ""

    @property
    def rows(self) -> int:
        """Rows compared."""
        return sum(layer.rows_compared for layer in self.layers)

    @property
    def bad(self) -> int:
        """Rows that differ."""
        return sum(layer.bad for layer in self.layers)

    @property
    def verdict(self) -> Verdict:
        """Nothing compared is inconclusive; so is a run that the fallback answered. The tool's own no is a no."""
        refused = self.refusals
        if self.bad or self.said == "wrong" or (refused is not None and refused.right != refused.tried):
            return Verdict.FAIL
        if self.said == "inconclusive" or self.error or not self.layers:
            return Verdict.INCONCLUSIVE
        if any(not layer.rows_compared or layer.fallbacks for layer in self.layers):
            return Verdict.INCONCLUSIVE
        return Verdict.PASS


def operator_manifest(session: Session) -> Manifest:
    """The manifest that the cluster file names.

    Raises:
        UsageError: it names none.
    """
    path = session.cluster.tables.manifest
    if path is None:
        raise UsageError("the cluster file names no tables.manifest", hint="dsv41ctl tables manifest --help")
    return load_manifest(Path(path).expanduser())


def check(session: Session, arm: Arm) -> Report:
    """Proves that the cluster is in configuration `arm`."""
    if arm == "A":
        seen = observe(session, want_counters=False)
        return evaluate_a(seen.nodes, seen.servers, seen.probe)
    manifest = operator_manifest(session)
    expected = [
        expected_b(
            session.cluster,
            manifest,
            node,
            environment=session.runtime.added(node, "B", session.node_host(node).home),
            overlay_sha256=_staged_overlay(session, node),
        )
        for node in session.cluster.by_rank
    ]
    seen = observe(session, want_counters=True)
    return evaluate_b(expected, seen.nodes, seen.servers, seen.probe)


def _staged_overlay(session: Session, node: Node) -> str | None:
    host = session.node_host(node)
    path = f"{session.cluster.paths.stage}/{STAGED}"
    try:
        return Staged.parse(host.get(path)).overlay_sha256 if host.exists(path) else None
    except Dsv41Error:
        return None


def verify_rows(session: Session, *, sample: int | None = None, refusals: bool = True) -> dict[str, RowsResult]:
    """Compares rows through the real reader with the local shard on every node, all nodes at once.

    Args:
        session: the run.
        sample: random rows a rank and table besides the corner cases; default: the cluster file's.
        refusals: also try the kinds of refusal on the server.

    Raises:
        Dsv41Error: the tool could not run on a node.
    """
    cluster = session.cluster
    by_name = {node.name: node for node in cluster.nodes}

    def one(host: Host) -> RowsResult:
        node = by_name[host.name]
        argv = [
            *_tool(session, "verify_rows.py"),
            *(word for layer in cluster.tables.layers for word in ("--layer", str(layer))),
            "--rank", str(node.rank), "--tp", str(cluster.tp),
            "--model-dir", cluster.tables.model_dir,
            "--root", _root(session, host),
            "--url", node.link.url,
            "--sample", str(cluster.verify.sample_rows if sample is None else sample),
            "--lookup-rows", str(cluster.verify.lookup_rows),
            "--seed", str(cluster.verify.seed),
            *(["--refusals"] if refusals else []),
            "--json",
        ]  # fmt: skip
        done = _run_tool(session, host, node, argv)
        return RowsResult.model_validate({**done, "node": node.name})

    return parallel([session.node_host(node) for node in cluster.by_rank], one)


def ident(session: Session) -> dict[str, dict[str, object]]:
    """What each node would present to the server: identities and its shard's header."""
    by_name = {node.name: node for node in session.cluster.nodes}

    def one(host: Host) -> dict[str, object]:
        argv = [
            *_tool(session, "ident.py"),
            "--root", _root(session, host),
            "--model-dir", session.cluster.tables.model_dir,
            "--json",
        ]  # fmt: skip
        return _run_tool(session, host, by_name[host.name], argv)

    return parallel([session.node_host(node) for node in session.cluster.by_rank], one)


def _root(session: Session, host: Host) -> str:
    path = session.cluster.paths.stage_in_container
    return host.expand(path) if path.startswith("~/") else path


def _tool(session: Session, name: str) -> list[str]:
    return [f"{session.cluster.paths.stage_in_container}/{_TOOLS}/{name}"]


def _run_tool(session: Session, host: Host, node: Node, argv: list[str]) -> dict[str, object]:
    argv = [host.expand(word) if word.startswith("~/") else word for word in argv]
    done = session.runtime.run_in_image(host, node, argv, timeout=_TOOL_TIMEOUT_S)
    # 3 and 5 are verdicts, and come with a document.
    if done.status not in (Exit.DONE, Exit.CHECK_SAYS_NO, Exit.INCONCLUSIVE):
        raise CommandFailed(
            ["python3", *argv[:1]], done.status, done.stderr or done.stdout, host=host.name, hint="dsv41ctl stage"
        )
    try:
        found = json.loads(done.stdout)
    except ValueError as error:
        raise Dsv41Error(f"{argv[0]} printed no JSON: {done.stderr[-300:]}", host=host.name) from error
    if not isinstance(found, dict):
        raise Dsv41Error(f"{argv[0]} printed no JSON object", host=host.name)
    return found
