from dataclasses import replace

import pytest

from dsv41ctl.checks.evaluate import (
    Expected,
    NodeSeen,
    Report,
    ServerSeen,
    TableExpected,
    Verdict,
    evaluate_a,
    evaluate_b,
)
from dsv41ctl.checks.loglines import parse_log
from dsv41ctl.checks.status import ServerStatus

IDENTITY = {1: "a" * 64, 14: "b" * 64}
URL = "tcp://127.0.0.1:18610@127.0.0.1"
ENVIRONMENT = {"DSV41_ENGRAM_OVERLAY": "/stage/engram.py", "VLLM_ENGRAM_REMOTE": URL}
LOG = f"""\
engram_remote: overlay /stage/engram.py in place of /image/engram.py
engram_remote: Engram table rows from the remote (layer 1)
engram_remote: remote rows from {URL} (tcp, direct placement, layer 1 rows [0, 100) of 200, identity {IDENTITY[1]}, rank 0)
engram_remote: remote rows from {URL} (tcp, direct placement, layer 14 rows [0, 110) of 210, identity {IDENTITY[14]}, rank 0)
engram_remote: Engram remote staging (49152 rows)
engram_remote: layer 1 rank 0: remote_lookups=12 rows=3456 MB=0.9 mean_us=51.2 fallbacks=0 fallback_rows=0 transport_errors=0 refusals=0 reconnects=0
engram_remote: layer 14 rank 0: remote_lookups=12 rows=3456 MB=0.9 mean_us=51.2 fallbacks=0 fallback_rows=0 transport_errors=0 refusals=0 reconnects=0
"""
WANT = Expected(
    node="spark",
    rank=0,
    url=URL,
    environment=ENVIRONMENT,
    overlay_path="/stage/engram.py",
    overlay_sha256="c" * 64,
    staging_rows=49152,
    placement="direct placement",
    tables=(TableExpected(1, 0, 100, IDENTITY[1]), TableExpected(14, 0, 110, IDENTITY[14])),
)


def status(lookups: int = 10, opens: int = 2, pid: int = 7, identity: str | None = None) -> ServerStatus:
    tables = [
        {
            "layer": layer,
            "rows": 200,
            "bytes": 52800,
            "verified": True,
            "identity": identity or IDENTITY[layer],
            "progress": 1.0,
            "load_s": 0.1,
        }
        for layer in (1, 14)
    ]
    return ServerStatus.model_validate(
        {
            "ready": True,
            "version": "0",
            "protocol": 1,
            "pid": pid,
            "uptime_s": 1.0,
            "rss_bytes": 1,
            "huge_bytes": 1,
            "huge_share": 1.0,
            "tables": tables,
            "listeners": ["127.0.0.1:18610"],
            "connections": opens,
            "opens": {"current": opens, "total": opens},
            "lookups": lookups,
            "rows": 1,
            "bytes": 264,
            "refusals": {"total": 0, "by_code": {}},
            "gather_us": {"count": 1, "p50": 1, "p99": 1, "mean": 1, "max": 1},
        }
    )


def seen(log: str | None = LOG, **changes: object) -> NodeSeen:
    node = NodeSeen("spark", True, ENVIRONMENT, None if log is None else parse_log(log), "c" * 64)
    return replace(node, **changes)  # type: ignore[arg-type]


def judge(node: NodeSeen, server: ServerSeen | None = None, probe: str | None = None) -> Report:
    return evaluate_b([WANT], {"spark": node}, [server or ServerSeen("x86host", status(10), status(14))], probe)


def named(report: Report, verdict: Verdict) -> set[str]:
    return {f"{row.where}: {row.what}" for row in report.rows if row.verdict is verdict}


def test_all_of_it_passes() -> None:
    report = judge(seen())
    assert report.verdict is Verdict.PASS, [row for row in report.rows if row.verdict is not Verdict.PASS]
    assert len(report.rows) > 20


@pytest.mark.parametrize(
    ("line", "replacement", "row"),
    [
        (
            "layer 1 rank 0: remote_lookups=12 rows=3456 MB=0.9 mean_us=51.2 fallbacks=0",
            "layer 1 rank 0: remote_lookups=12 fallbacks=3",
            "spark layer 1: fallbacks",
        ),
        ("[0, 110)", "[0, 111)", "spark layer 14: rows"),
        (f"identity {IDENTITY[1]}", f"identity {'d' * 64}", "spark layer 1: identity"),
        ("(tcp, direct placement, layer 1 ", "(tcp, bounce copy, layer 1 ", "spark layer 1: placement"),
        ("overlay /stage/engram.py", "overlay /other/engram.py", "spark: engram module"),
        ("staging (49152", "staging (100", "spark layer 1: staging rows"),
        (
            "127.0.0.1:18610@127.0.0.1 (tcp, direct placement, layer 14",
            "127.0.0.1:18611@127.0.0.1 (tcp, direct placement, layer 14",
            "spark layer 14: remote rows",
        ),
    ],
)
def test_a_wrong_line_fails_its_row(line: str, replacement: str, row: str) -> None:
    assert line in LOG
    report = judge(seen(LOG.replace(line, replacement)))
    assert report.verdict is Verdict.FAIL
    assert row in named(report, Verdict.FAIL)


def test_a_refused_open_fails_with_the_reason() -> None:
    log = "engram_remote: OPEN refused by the server, status -101: identity differs (layer 1 rank 0)\n"
    report = judge(seen(log))
    assert "spark layer 1: remote rows" in named(report, Verdict.FAIL)
    assert any("-101" in row.seen for row in report.rows)


@pytest.mark.parametrize("log", [None, ""])
def test_a_missing_log_is_never_a_pass(log: str | None) -> None:
    assert judge(seen(log)).verdict is Verdict.INCONCLUSIVE


def test_zero_fallbacks_from_a_log_without_counters_is_inconclusive() -> None:
    log = "\n".join(line for line in LOG.splitlines() if "remote_lookups" not in line)
    report = judge(seen(log))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "spark layer 1: fallbacks" in named(report, Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("server", "verdict"),
    [
        (ServerSeen("x86host", status(10), status(10)), Verdict.FAIL),
        (ServerSeen("x86host", status(10), status(20, opens=1)), Verdict.FAIL),
        (ServerSeen("x86host", status(10, pid=1), status(20, pid=2)), Verdict.INCONCLUSIVE),
        (ServerSeen("x86host", None, None, "no answer"), Verdict.INCONCLUSIVE),
        (ServerSeen("x86host", status(10), status(20, identity="e" * 64)), Verdict.FAIL),
    ],
)
def test_the_servers_counters_must_agree(server: ServerSeen, verdict: Verdict) -> None:
    assert judge(seen(), server).verdict is verdict


def test_environment_and_process() -> None:
    assert judge(seen(environment={})).verdict is Verdict.FAIL
    assert judge(seen(environment=None)).verdict is Verdict.INCONCLUSIVE
    assert judge(seen(environment={**ENVIRONMENT, "VLLM_ENGRAM_REMOTE_BOUNCE": "1"})).verdict is Verdict.FAIL
    assert judge(seen(running=False)).verdict is Verdict.FAIL
    assert judge(seen(running=None)).verdict is Verdict.INCONCLUSIVE
    assert judge(seen(overlay_sha256="f" * 64)).verdict is Verdict.FAIL
    assert judge(seen(), probe="HTTP 500").verdict is Verdict.FAIL


def test_a_node_that_was_not_observed_is_inconclusive() -> None:
    report = evaluate_b([WANT], {}, [ServerSeen("x86host", status(1), status(9))], None)
    assert report.verdict is Verdict.INCONCLUSIVE


def test_a_is_proved_by_the_absence_of_b() -> None:
    clean = NodeSeen("spark", True, {"PATH": "/bin"}, parse_log("lab_engine: up\n"))
    down = ServerSeen("x86host", None, None, "stopped")
    assert evaluate_a({"spark": clean}, [down], None).verdict is Verdict.PASS
    assert evaluate_a({"spark": seen()}, [down], None).verdict is Verdict.FAIL
    assert evaluate_a({"spark": replace(clean, log=None)}, [down], None).verdict is Verdict.INCONCLUSIVE
    assert evaluate_a({"spark": clean}, [ServerSeen("x", status(), status(opens=2))], None).verdict is Verdict.FAIL


def test_an_empty_report_is_not_a_pass() -> None:
    assert Report("B").verdict is Verdict.INCONCLUSIVE
