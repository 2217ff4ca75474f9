"""The whole job on the lab, as a user runs it."""

import json
import socket
from pathlib import Path

import pytest

from tests.e2e.conftest import Lab

# The first run compiles the extension on both nodes.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

GATES = [
    "lab up", "table server", "A serves", "capture A1", "capture A2", "noise floor", "bench A", "stage", "prebuild",
    "start B", "B is B", "rows byte-exact", "capture B1", "A against B", "bench B", "B is still B", "rollback", "A is A",
    "lab down",
]  # fmt: skip


def test_the_demo_goes_there_and_back(lab: Lab, tmp_path: Path) -> None:
    summary = tmp_path / "demo.json"
    ran = lab("--json", "lab", "demo", "--summary", str(summary))
    assert ran.code == 0, ran.err
    document = json.loads(summary.read_text())
    assert document == ran.json()
    assert [gate["gate"] for gate in document["gates"]] == GATES
    assert {gate["verdict"] for gate in document["gates"]} == {"pass"}
    figures = {gate["gate"]: gate["figures"] for gate in document["gates"]}
    assert figures["rows byte-exact"]["bad"] == 0
    assert figures["rows byte-exact"]["rows_compared"] >= 700_000
    assert figures["rows byte-exact"]["refusals"] == {
        "spark": {"tried": 12, "right": 12},
        "spark-b": {"tried": 12, "right": 12},
    }
    assert figures["A against B"]["verdict"] == "IDENTICAL"
    report = Path(document["report"])
    assert report.read_text().startswith("<!")
    history = lab("--json", "history").json()
    assert history[-1]["verb"] == "lab demo"


def test_one_corrupted_row_stops_the_rollout_and_undoes_it(lab: Lab) -> None:
    corrupt = 'extra_args = ["--fault", "corrupt=1:12345"]\nbinary = "engram_server_faults"\nthreads = 2'
    lab.edit(lambda text: text.replace("threads = 2", corrupt))
    ran = lab("--json", "rollout", "--no-bench")
    assert ran.code == 3, ran.err
    gates = {gate["gate"]: gate for gate in ran.json()["gates"]}
    rows = gates["rows byte-exact"]
    assert rows["verdict"] == "fail"
    assert rows["figures"]["bad"] >= 1
    assert "12345" in rows["detail"]
    assert gates["undo to A"]["verdict"] == "pass"
    assert ran.json()["ended"] == "A (undone)"
    assert lab("check", "--arm", "A").code == 0
    assert lab("--json", "status").json()["state"] == "A"


def test_a_rollout_left_in_b_is_b_until_it_is_rolled_back(lab: Lab) -> None:
    ran = lab("--json", "rollout", "--no-bench")
    assert ran.code == 0, ran.err
    assert ran.json()["ended"] == "B"
    assert lab("check").code == 0
    assert lab("check", "--arm", "A").code == 3
    again = lab("--json", "start", "--arm", "B")
    assert again.code == 0
    assert "changed" not in {step["word"] for step in again.json()["steps"]}
    back = lab("--json", "rollback", "--purge")
    assert back.code == 0, back.err
    assert lab("check", "--arm", "A").code == 0
    assert lab("check").code in (3, 5)
    assert not list((lab.root / "hosts").glob("spark*/.cache/dsv41-serve/dsv41-offload/**/*.py"))


def test_noise_gives_a_floor_and_b_stays_within_it(lab: Lab) -> None:
    lab.edit(
        lambda text: text.replace(
            '"--model-dir", "{model_dir}"', '"--model-dir", "{model_dir}", "--noise-above", "256"'
        )
    )
    ran = lab("--json", "rollout", "--no-bench")
    gates = {gate["gate"]: gate for gate in ran.json()["gates"]}
    assert gates["noise floor"]["figures"]["verdict"] != "IDENTICAL"
    # One floor pair and one B run: noise may exceed the factor by chance, but never reads as identical.
    assert gates["A against B"]["figures"]["verdict"] in ("WITHIN FLOOR", "DIFFERENT", "INCONCLUSIVE")
    assert ran.code == (0 if gates["A against B"]["verdict"] == "pass" else ran.code)
    assert ran.code in (0, 3, 5)


def test_the_table_host_down_fails_a_required_boot_with_the_reason(lab: Lab) -> None:
    assert lab("lab", "up").code == 0
    assert lab("stage").code == 0
    assert lab("prebuild").code == 0
    ran = lab("start", "--arm", "B")
    # Said before any rank is started; the boot itself is tested with the reader.
    assert ran.code == 1
    assert "x86host" in ran.err
    assert "dsv41ctl server start" in ran.err
    assert lab("--json", "status").json()["state"] in ("stopped", "mixed")


def test_without_required_it_boots_on_the_fallback_and_attaches_later(lab: Lab) -> None:
    lab.edit(lambda text: text.replace("required = true", "required = false"))
    for verb in (["lab", "up"], ["stage"], ["prebuild"], ["start", "--arm", "B"]):
        ran = lab(*verb)
        assert ran.code == 0, ran.err
    early = lab("--json", "check")
    assert early.code in (3, 5)
    assert lab("server", "start").code == 0
    # The tables attach within RETRY_MS (0.5 s); fallbacks of the boot stay counted, so B is still not clean.
    late = lab("--json", "check").json()
    seen = {(row["where"], row["what"]): row for row in late["rows"]}
    assert seen[("spark layer 1", "remote rows")]["verdict"] == "pass"


def test_a_port_in_use_is_one_line(lab: Lab) -> None:
    assert lab("lab", "up").code == 0
    port = int(lab.file.read_text().split('listeners = ["127.0.0.1:')[1].split('"')[0])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        ran = lab("server", "start")
    assert ran.code == 1
    assert f"127.0.0.1:{port}" in ran.err
    assert "in use" in ran.err
    assert "Traceback" not in ran.err


def test_a_second_stage_changes_nothing(lab: Lab) -> None:
    assert lab("lab", "up").code == 0
    assert lab("stage").code == 0
    ran = lab("--json", "stage")
    assert ran.code == 0
    assert {step["word"] for step in ran.json()["steps"]} == {"unchanged"}
