import io

from rich.console import Console

from dsv41ctl.apply import ClusterStatus, NodeStatus, Outcome, ServerState, StepResult
from dsv41ctl.checks.status import ServerStatus
from dsv41ctl.cli.serve_verbs import status_view
from dsv41ctl.cli.server import server_lines
from dsv41ctl.cli.steps_view import outcome_text
from dsv41ctl.plan import Word
from dsv41ctl.runtimes import ServeState


def _status(**changes: object) -> ServerStatus:
    table = {
        "layer": 1,
        "rows": 384006168,
        "bytes": 1,
        "verified": True,
        "identity": "6e" * 32,
        "progress": 1.0,
        "load_s": 1.0,
    }
    document = {
        "ready": True, "version": "0.1.0", "protocol": 1, "pid": 7, "uptime_s": 61.0, "rss_bytes": 2**30, "huge_bytes": 0,
        "huge_share": 1.0, "tables": [table, {**table, "layer": 14}], "listeners": ["10.202.28.1:18610", "10.202.29.1:18610"],
        "connections": 4, "opens": {"current": 4, "total": 5}, "lookups": 12, "rows": 3456, "bytes": 1,
        "refusals": {"total": 1, "by_code": {"-101": 1}},
        "gather_us": {"count": 1, "p50": 1.0, "p99": 2.0, "mean": 1.0, "max": 3.0},
    }  # fmt: skip
    return ServerStatus.model_validate(document | changes)


def _text(renderable: object) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(renderable)
    return out.getvalue()


def test_server_status_looks_as_in_the_seed() -> None:
    lines = server_lines(ServerState("x86host", True, 7, _status()))
    assert [line for line in lines if line.startswith("ready=True") and "verified=True" in line] == [
        f"ready=True layer={layer} rows=384006168 verified=True identity={'6e' * 32}" for layer in (1, 14)
    ]
    assert "listening 10.202.28.1:18610" in lines
    assert "listening 10.202.29.1:18610" in lines
    assert any(line.startswith("opens=4 ") and "lookups=12" in line and "refusals=1 -101:1" in line for line in lines)


def test_a_server_that_loads_shows_how_far_it_is() -> None:
    table = {"layer": 1, "rows": 1, "bytes": 1, "verified": False, "identity": None, "progress": 0.5, "load_s": 0.0}
    lines = server_lines(ServerState("x86host", True, 7, _status(ready=False, tables=[table])))
    assert "ready=False layer=1 rows=1 verified=False identity=unknown progress=50%" in lines
    assert server_lines(ServerState("x86host", None, problem="unreachable")) == ["x86host: cannot be read: unreachable"]


def test_status_shows_the_repairing_command() -> None:
    running = ServeState(running=True, exists=True, start_id="abc", started_at="2026")
    found = ClusterStatus(
        "mixed",
        (
            NodeStatus("spark", 0, running, "B", True, "f" * 64, True),
            NodeStatus(
                "spark-b", 1, ServeState(running=False, exists=True, exit_status=9), None, True, "e" * 64, False
            ),
            NodeStatus("spark-c", 2, None, problem="unreachable: timed out [x]"),
        ),
        (ServerState("x86host", True, 7, _status()),),
        ready=False,
        repair="dsv41ctl start --arm B",
    )
    text = _text(status_view(found))
    for words in (
        "ended with status 9", "NOT as staged", "unreachable: timed out [x]", "layer 1 verified", "4 (5 in all)",
        "cluster: mixed (the serve does not answer); repair: dsv41ctl start --arm B",
    ):  # fmt: skip
        assert words in text


def test_unchanged_steps_are_counted_when_they_are_many() -> None:
    steps = [StepResult("n", f"stage {number}", Word.UNCHANGED) for number in range(20)]
    steps.append(StepResult("n", "stage last", Word.CHANGED, 1.26, detail="[not markup]"))
    lines = outcome_text(Outcome("stage", tuple(steps)), commands=False).splitlines()
    assert lines == [
        "changed      n: stage last  1.3 s",
        "    [not markup]",
        "stage: changed (1 changed, 20 unchanged)",
    ]


def test_a_long_command_is_not_wrapped() -> None:
    step = StepResult("n", "start", Word.WOULD, command="x" * 500, argv=("x",))
    assert f"    $ {'x' * 500}" in outcome_text(Outcome("start", (step,)), commands=True).splitlines()
