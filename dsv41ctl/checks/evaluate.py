"""What a cluster must show to be A or B, row by row. Pure: observations in, verdicts out.

Missing data is never a pass: a row whose data could not be had is *inconclusive*.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from dsv41ctl.checks.loglines import ReaderLog
from dsv41ctl.checks.status import ServerStatus

__all__ = [
    "Expected",
    "NodeSeen",
    "Report",
    "Row",
    "ServerSeen",
    "TableExpected",
    "Verdict",
    "evaluate_a",
    "evaluate_b",
]

REMOTE_PREFIXES = ("VLLM_ENGRAM_REMOTE", "DSV41_ENGRAM_OVERLAY")


class Verdict(Enum):
    """Of one row, or of a whole check."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Row:
    """One thing that was checked."""

    where: str
    what: str
    expected: str
    seen: str
    verdict: Verdict


@dataclass(frozen=True)
class TableExpected:
    """What one rank's table must be bound to."""

    layer: int
    start: int
    end: int
    identity: str


@dataclass(frozen=True)
class Expected:
    """What one node must show.

    Attributes:
        url: its entry of VLLM_ENGRAM_REMOTE.
        environment: the variables that B adds.
        overlay_path: where the overlay lies, as the serve sees it.
        overlay_sha256: of the staged overlay, from what was staged.
        placement: `direct placement` or `bounce copy`.
    """

    node: str
    rank: int
    url: str
    environment: Mapping[str, str]
    overlay_path: str
    overlay_sha256: str | None
    staging_rows: int
    placement: str
    tables: tuple[TableExpected, ...]


@dataclass(frozen=True)
class NodeSeen:
    """What one node showed. None: it could not be read."""

    node: str
    running: bool | None
    environment: Mapping[str, str] | None = None
    log: ReaderLog | None = None
    overlay_sha256: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class ServerSeen:
    """A table server before and after the probe request."""

    host: str
    before: ServerStatus | None
    after: ServerStatus | None
    problem: str | None = None


@dataclass(frozen=True)
class Report:
    """All rows of a check."""

    arm: str
    rows: list[Row] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """FAIL over INCONCLUSIVE over PASS; no rows at all is inconclusive."""
        verdicts = {row.verdict for row in self.rows}
        if Verdict.FAIL in verdicts:
            return Verdict.FAIL
        if Verdict.INCONCLUSIVE in verdicts or not verdicts:
            return Verdict.INCONCLUSIVE
        return Verdict.PASS


def _row(where: str, what: str, expected: object, seen: object | None, *, missing: str = "no data") -> Row:
    if seen is None:
        return Row(where, what, str(expected), missing, Verdict.INCONCLUSIVE)
    return Row(where, what, str(expected), str(seen), Verdict.PASS if seen == expected else Verdict.FAIL)


def _probe_row(probe: str | None) -> Row:
    seen = "answered" if probe is None else probe
    return Row("serve", "probe request", "answered", seen, Verdict.PASS if probe is None else Verdict.FAIL)


def _running_row(seen: NodeSeen) -> Row:
    word = None if seen.running is None else ("running" if seen.running else "not running")
    return _row(seen.node, "serve", "running", word, missing=seen.problem or "could not be read")


def evaluate_b(
    expected: Iterable[Expected],
    nodes: Mapping[str, NodeSeen],
    servers: Iterable[ServerSeen],
    probe: str | None,
) -> Report:
    """Judges configuration B.

    Args:
        expected: one entry a node.
        nodes: what each node showed, by name.
        servers: what each table server showed around the probe request.
        probe: None when the probe request was answered, else what went wrong.
    """
    rows: list[Row] = [_probe_row(probe)]
    wanted = list(expected)
    for want in wanted:
        seen = nodes.get(want.node, NodeSeen(want.node, None, problem="not observed"))
        rows.append(_running_row(seen))
        if seen.running is False:
            continue
        rows.extend(_environment_rows(want, seen))
        rows.append(
            _row(want.node, "staged overlay", want.overlay_sha256 or "a staged overlay", seen.overlay_sha256)
            if want.overlay_sha256
            else Row(
                want.node,
                "staged overlay",
                "sha256 of what was staged",
                "no staged.json",
                Verdict.INCONCLUSIVE,
            )
        )
        rows.append(
            _row(
                want.node,
                "engram module",
                want.overlay_path,
                seen.log.overlay if seen.log else None,
                missing="no overlay line in the log of this start" if seen.log else "log could not be read",
            )
        )
        for table in want.tables:
            rows.extend(_table_rows(want, table, seen.log))
    rows.extend(_server_rows(wanted, list(servers)))
    return Report("B", rows)


def _environment_rows(want: Expected, seen: NodeSeen) -> list[Row]:
    if seen.environment is None:
        return [Row(want.node, "environment", "B's variables", "could not be read", Verdict.INCONCLUSIVE)]
    wrong = [
        f"{name}={seen.environment.get(name, '(unset)')}"
        for name, value in want.environment.items()
        if seen.environment.get(name) != value
    ]
    stray = [
        f"{name} (not wanted)"
        for name in sorted(seen.environment)
        if name.startswith(REMOTE_PREFIXES) and name not in want.environment
    ]
    expected = f"{len(want.environment)} variables of B"
    return [_row(want.node, "environment", expected, ", ".join(wrong + stray) or expected)]


def _table_rows(want: Expected, table: TableExpected, log: ReaderLog | None) -> list[Row]:
    where = f"{want.node} layer {table.layer}"
    if log is None:
        return [Row(where, "remote rows", want.url, "log could not be read", Verdict.INCONCLUSIVE)]
    attach = log.attaches.get(table.layer)
    refused = next((text for text in log.refusals if f"layer {table.layer}" in text), None)
    if attach is None:
        verdict = Verdict.FAIL if refused or log.fallbacks else Verdict.INCONCLUSIVE
        return [Row(where, "remote rows", want.url, refused or "no attach line in the log of this start", verdict)]
    rows = [
        _row(where, "remote rows", want.url, attach.url),
        _row(where, "rank", want.rank, attach.rank),
        _row(where, "rows", f"[{table.start}, {table.end})", f"[{attach.start}, {attach.end})"),
        _row(where, "identity", table.identity, attach.identity),
        _row(where, "placement", want.placement, want.placement if want.placement in attach.how else attach.how),
        _row(
            where,
            "staging rows",
            want.staging_rows,
            want.staging_rows if want.staging_rows in log.staging_rows else max(log.staging_rows, default=None),
        ),
    ]
    counters = log.counters.get(table.layer)
    for name in ("fallbacks", "transport_errors", "refusals"):
        rows.append(
            _row(
                where,
                name,
                0,
                counters.get(name) if counters else None,
                missing="no LOG_S line in the log of this start",
            )
        )
    lookups = counters.get("remote_lookups") if counters else None
    rows.append(
        Row(
            where,
            "remote lookups",
            "> 0",
            "no LOG_S line" if lookups is None else str(lookups),
            _positive(lookups),
        )
    )
    return rows


def _positive(count: int | None) -> Verdict:
    if count is None:
        return Verdict.INCONCLUSIVE
    return Verdict.PASS if count > 0 else Verdict.FAIL


def _server_rows(wanted: list[Expected], servers: list[ServerSeen]) -> list[Row]:
    rows: list[Row] = []
    identities = {table.layer: table.identity for want in wanted for table in want.tables}
    opens = 0
    known = bool(servers)
    for server in servers:
        before, after = server.before, server.after
        if before is None or after is None:
            known = False
            rows.append(Row(server.host, "table server", "ready", server.problem or "no status", Verdict.INCONCLUSIVE))
            continue
        rows.append(_row(server.host, "table server", "ready", "ready" if after.ready else "not ready"))
        for table in after.tables:
            rows.append(_row(server.host, f"layer {table.layer} verified", True, table.verified))
            if table.layer in identities:
                rows.append(_row(server.host, f"layer {table.layer} identity", identities[table.layer], table.identity))
        grown = after.lookups - before.lookups
        # A smaller count is another server than before the probe: its growth says nothing.
        if after.pid != before.pid or grown < 0:
            rows.append(
                Row(
                    server.host,
                    "lookups under a probe",
                    "growing",
                    "server restarted meanwhile",
                    Verdict.INCONCLUSIVE,
                )
            )
        else:
            verdict = Verdict.PASS if grown > 0 else Verdict.FAIL
            rows.append(Row(server.host, "lookups under a probe", "growing", f"+{grown}", verdict))
        opens += after.opens.current
    tables = sum(len(want.tables) for want in wanted)
    rows.append(_row("table servers", "opens", tables, opens if known else None))
    return rows


def evaluate_a(nodes: Mapping[str, NodeSeen], servers: Iterable[ServerSeen], probe: str | None) -> Report:
    """Judges configuration A: nothing of B is left in environment, log or on the servers."""
    rows: list[Row] = [_probe_row(probe)]
    for seen in nodes.values():
        rows.append(_running_row(seen))
        if seen.running is False:
            continue
        if seen.environment is None:
            rows.append(Row(seen.node, "environment", "no variable of B", "could not be read", Verdict.INCONCLUSIVE))
        else:
            left = [name for name in sorted(seen.environment) if name.startswith(REMOTE_PREFIXES)]
            rows.append(_row(seen.node, "environment", "no variable of B", ", ".join(left) or "no variable of B"))
        if seen.log is None:
            rows.append(Row(seen.node, "remote rows", "none", "log could not be read", Verdict.INCONCLUSIVE))
            continue
        attached = ", ".join(f"layer {layer}" for layer in sorted(seen.log.attaches))
        rows.append(_row(seen.node, "remote rows", "none", attached or "none"))
        rows.append(_row(seen.node, "overlay", "none", seen.log.overlay or "none"))
    for server in servers:
        # A server that is down has nobody attached; that is what A wants.
        sessions = server.after.opens.current if server.after else 0
        rows.append(_row(server.host, "opens", 0, sessions))
    return Report("A", rows)
