import json
import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from dsv41ctl.apply import (
    NodeStatus,
    cluster_state,
    list_journals,
    prebuild,
    read_journal,
    server_start,
    server_stop,
    stage,
    start,
    status,
    stop,
)
from dsv41ctl.errors import CommandFailed, HostError
from dsv41ctl.hosts import LocalHost
from dsv41ctl.plan import OVERLAY, Word
from dsv41ctl.runtimes import ServeState


@pytest.fixture
def ready_for_b(tiny):
    tiny.run(stage)
    tiny.run(prebuild)
    tiny.run(server_start)
    tiny.steps.clear()
    return tiny


def test_prebuild_builds_once(tiny) -> None:
    tiny.run(stage)
    first = tiny.run(prebuild)
    assert first.changed == 2
    detail = first.steps[0].detail.splitlines()
    assert detail[0] == f"overlay: {tiny.staged('n0') / OVERLAY}"
    assert detail[1].startswith(f"ext: {tiny.home('n0')}/.cache/dsv41-serve/torch_extensions/vllm_engram_remote_")
    assert sorted(line for line in tiny.lines if "compiling" in line) == ["n0|compiling", "n1|compiling"]
    assert tiny.run(prebuild).word is Word.UNCHANGED
    assert tiny.run(prebuild, dry_run=True).word is Word.UNCHANGED


def test_prebuild_needs_stage(tiny) -> None:
    with pytest.raises(HostError, match="nothing is staged") as caught:
        tiny.run(prebuild)
    assert caught.value.hint == "dsv41ctl stage"


def test_prebuild_refuses_beside_a_serve_unless_forced(tiny) -> None:
    tiny.run(stage)
    tiny.run(start, "A")
    with pytest.raises(HostError, match="a serve runs there") as caught:
        tiny.run(prebuild)
    assert "prebuild --force" in str(caught.value.hint)
    assert tiny.run(prebuild, force=True).changed == 2


def test_prebuild_says_the_first_error(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.run(stage)
    monkeypatch.setattr(
        LocalHost, "_environment", lambda host, env: {**os.environ, "HOME": host.home, "BREAK_BUILD": "1", **env}
    )
    with pytest.raises(HostError, match=r"engram_remote\.cpp:1:1: error: expected unqualified-id"):
        tiny.run(prebuild)
    record = next(row for row in read_journal(list_journals()[-1].path) if row["record"] == "step")
    assert "expected unqualified-id" in str(record["error"])


def test_prebuild_checks_whose_module_was_loaded(tiny) -> None:
    path = tiny.root / "overlays/py/sitecustomize.py"
    text = path.read_text()
    # A copy elsewhere is loaded: the same code, but nobody vouches for it.
    path.write_text(
        text.replace("import os, sys", "import os, sys, shutil").replace(
            'os.environ["DSV41_ENGRAM_OVERLAY"])',
            'shutil.copy(os.environ["DSV41_ENGRAM_OVERLAY"], os.environ["HOME"]))',
        )
    )
    tiny.run(stage)
    with pytest.raises(HostError, match=r"the engram module came from .*n0/engram\.py, not from the staged"):
        tiny.run(prebuild)


def test_a_then_b_then_a(ready_for_b) -> None:
    tiny = ready_for_b
    assert tiny.run(start, "A").changed == 2
    assert tiny.run(status).state == "A"
    again = tiny.run(start, "A")
    assert again.word is Word.UNCHANGED
    first = tiny.run(status)
    outcome = tiny.run(start, "B")
    titles = [(step.host, step.title) for step in outcome.steps]
    assert set(titles[:2]) == {("n0", "stop rank 0"), ("n1", "stop rank 1")}
    assert titles[2:] == [("n1", "start rank 1 in configuration B"), ("n0", "start rank 0 in configuration B")]
    found = tiny.run(status)
    assert (found.state, found.ready, found.repair) == ("B", True, None)
    assert [(node.arm, node.staged, node.overlay_matches) for node in found.nodes] == [("B", True, True)] * 2
    assert found.nodes[0].state.start_id != first.nodes[0].state.start_id
    assert httpx.get(f"{tiny.cluster.serve.url}/health", trust_env=False).status_code == 200
    assert tiny.run(start, "A").changed == 4
    assert tiny.run(status).state == "A"
    json.dumps(found.as_json())


def test_stop_twice(tiny) -> None:
    tiny.run(start, "A")
    assert tiny.run(stop).changed == 2
    assert tiny.run(stop).word is Word.UNCHANGED
    assert tiny.run(status).state == "stopped"


def test_b_names_what_is_missing_first(tiny) -> None:
    for hint, verb in (
        ("dsv41ctl stage", stage),
        ("dsv41ctl prebuild", prebuild),
        ("dsv41ctl server start", server_start),
    ):
        with pytest.raises(HostError) as caught:
            tiny.run(start, "B")
        assert hint in str(caught.value)
        assert tiny.run(status).state == "stopped"
        tiny.run(verb)
    assert tiny.run(start, "B").word is Word.CHANGED


def test_b_refuses_what_was_edited_after_staging(ready_for_b) -> None:
    tiny = ready_for_b
    (tiny.staged("n1") / OVERLAY).write_text("# somebody's edit\n")
    with pytest.raises(HostError, match="n1: the staged files are not what was staged"):
        tiny.run(start, "B")


def test_b_refuses_an_extension_of_another_stage(ready_for_b) -> None:
    tiny = ready_for_b
    (tiny.root / "native/reader/remote_table.h").write_text("// newer\n")
    tiny.run(stage)
    with pytest.raises(HostError, match="staged anew since its extension was built"):
        tiny.run(start, "B")
    tiny.run(prebuild)
    extension = next((tiny.home("n0") / ".cache/dsv41-serve/torch_extensions").rglob("*.so"))
    extension.unlink()
    with pytest.raises(HostError, match="lacks the extension"):
        tiny.run(start, "B")


def test_without_required_b_starts_without_its_server(ready_for_b) -> None:
    tiny = ready_for_b
    tiny.run(server_stop)
    tiny.changed("remote", required=False)
    assert tiny.run(start, "B").word is Word.CHANGED


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_dies_is_shown_and_all_are_stopped(tiny, rank: str) -> None:
    tiny.changed("serve", environment={"DIE_RANK": rank})
    with pytest.raises(HostError, match=f"rank {rank} ended with status 9") as caught:
        tiny.run(start, "A")
    assert "the reason of the death" in str(caught.value)
    assert caught.value.host == f"n{rank}"
    found = tiny.run(status)
    assert found.state == "stopped"
    assert not any(node.state.exists for node in found.nodes)


def test_a_serve_that_does_not_get_ready_is_stopped(tiny) -> None:
    tiny.changed("serve", environment={"NEVER_READY": "1"}, ready_timeout_s=1.0)
    with pytest.raises(HostError, match=r"did not get ready within 1 s.*\n.*n0 \| rank 0 engram module"):
        tiny.run(start, "A")
    assert tiny.run(status).state == "stopped"


def test_ctrl_c_while_waiting_stops_what_was_started(tiny, state: Path) -> None:
    tiny.changed("serve", environment={"NEVER_READY": "1"})

    def interrupt() -> None:
        time.sleep(2.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        tiny.run(start, "A")
    assert list_journals()[-1].verdict == "interrupted"
    assert tiny.run(status).state == "stopped"


def test_somebody_else_on_the_port(tiny) -> None:
    import http.server

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", tiny.cluster.serve.port), Handler) as other:
        thread = threading.Thread(target=other.serve_forever, daemon=True)
        thread.start()
        try:
            with pytest.raises(HostError, match="another serve has the port"):
                tiny.run(start, "A")
        finally:
            other.shutdown()


def test_a_mixed_cluster_is_named_and_repaired(ready_for_b) -> None:
    tiny = ready_for_b
    tiny.run(start, "B")
    found = tiny.run(status)
    os.kill(found.nodes[1].state.pid, signal.SIGKILL)
    time.sleep(0.3)
    mixed = tiny.run(status)
    assert (mixed.state, mixed.repair) == ("mixed", "dsv41ctl start --arm B")
    assert tiny.run(start, "B").changed == 4
    assert tiny.run(status).state == "B"


def test_a_dry_run_starts_nothing(ready_for_b) -> None:
    tiny = ready_for_b
    outcome = tiny.run(start, "B", dry_run=True)
    assert outcome.word is Word.WOULD
    assert "VLLM_ENGRAM_REMOTE=tcp://" in str(outcome.steps[0].command)
    assert tiny.run(status).state == "stopped"


def test_purge_is_refused_while_b_reads_the_tree(ready_for_b) -> None:
    tiny = ready_for_b
    tiny.run(start, "B")
    with pytest.raises(HostError, match="runs configuration B from the staged tree"):
        tiny.run(stage, purge=True)
    tiny.run(start, "A")
    assert tiny.run(stage, purge=True).changed == 2


def test_credentials_reach_the_serve_and_nothing_else(tiny, state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sentinel = "s3ntinel-value"
    tiny.changed("serve", environment={"HF_TOKEN": sentinel})
    outcome = tiny.run(start, "A")
    found = tiny.run(status)
    assert found.nodes[0].state.environment["HF_TOKEN"] == sentinel
    dry = tiny.run(start, "B", dry_run=True)
    tiny.changed("serve", environment={"HF_TOKEN": sentinel, "DIE_RANK": "0"})
    with pytest.raises(HostError) as caught:
        tiny.run(start, "A")
    texts = [json.dumps(outcome.as_json()), json.dumps(found.as_json()), json.dumps(dry.as_json()), str(caught.value)]
    texts += [path.read_text() for path in state.rglob("*.jsonl")]
    texts += [path.read_text() for path in tiny.root.rglob("*audit.log")]
    texts += list(capfd.readouterr())
    assert not any(sentinel in text for text in texts)
    assert any("HF_TOKEN=****" in text for text in texts)


def _node(name: str, arm: str | None, *, running: bool = True, readable: bool = True) -> NodeStatus:
    state = ServeState(running=running, exists=running) if readable else None
    return NodeStatus(name, 0, state, arm)


@pytest.mark.parametrize(
    ("nodes", "state", "repair"),
    [
        ([("A", True, True), ("A", True, True)], "A", None),
        ([("B", True, True), ("B", True, True)], "B", None),
        ([(None, False, True), (None, False, True)], "stopped", None),
        ([("A", True, True), ("B", True, True)], "mixed", "dsv41ctl start --arm A"),
        ([("B", True, True), (None, False, True)], "mixed", "dsv41ctl start --arm B"),
        ([("A", True, True), (None, False, True)], "mixed", "dsv41ctl start --arm A"),
        ([("other", True, True), ("other", True, True)], "mixed", "dsv41ctl start --arm B"),
        ([(None, True, True), (None, True, True)], "mixed", "dsv41ctl start --arm A"),
        ([("B", True, True), (None, False, False)], "unknown", None),
    ],
)
def test_cluster_states(nodes: list[tuple[str | None, bool, bool]], state: str, repair: str | None) -> None:
    seen = tuple(
        _node(f"n{i}", arm, running=running, readable=readable) for i, (arm, running, readable) in enumerate(nodes)
    )
    assert cluster_state(seen) == (state, repair)


def test_a_failed_command_of_a_host_keeps_its_exit_code() -> None:
    assert CommandFailed(["x"], 3, "", host="n0").code == 1
