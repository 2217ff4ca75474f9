import pytest

from dsv41ctl.checks.evaluate import Verdict
from dsv41ctl.errors import CommandFailed, Exit, Inconclusive
from dsv41ctl.rollout.gates import Gate, GateStopped, Summary, Tracker


def tracker() -> tuple[Tracker, list[tuple[str, bool]]]:
    heard: list[tuple[str, bool]] = []
    return Tracker(Summary("lab"), lambda gate, done: heard.append((gate.name, done))), heard


def test_a_gate_that_passes_is_timed_and_told() -> None:
    track, heard = tracker()
    with track.gate("rows") as gate:
        gate.passed("all equal", rows=5)
    assert heard == [("rows", False), ("rows", True)]
    assert track.summary.verdict is Verdict.PASS
    assert track.summary.as_json()["gates"][0]["figures"] == {"rows": 5}  # type: ignore[index, call-overload]


def test_a_gate_that_says_nothing_stops_as_inconclusive() -> None:
    track, _ = tracker()
    with pytest.raises(GateStopped) as stopped, track.gate("rows"):
        pass
    assert stopped.value.code == Exit.INCONCLUSIVE
    assert track.summary.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("error", "code"),
    [(Inconclusive("no data"), 5), (CommandFailed(["x"], 9, "out", host="spark"), 1)],
)
def test_an_error_in_a_gate_keeps_its_exit_code(error: Exception, code: int) -> None:
    track, heard = tracker()
    with pytest.raises(GateStopped) as stopped, track.gate("rows"):
        raise error
    assert stopped.value.code == code
    assert heard[-1] == ("rows", True)


def test_a_failed_gate_exits_3() -> None:
    track, _ = tracker()
    with pytest.raises(GateStopped) as stopped, track.gate("rows") as gate:
        gate.failed("1 bad row")
    assert stopped.value.code == Exit.CHECK_SAYS_NO


def test_a_summary_without_gates_is_not_a_pass() -> None:
    assert Summary("lab").verdict is Verdict.INCONCLUSIVE
    assert Gate("x").verdict is Verdict.INCONCLUSIVE
