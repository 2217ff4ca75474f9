import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from dsv41ctl.apply import list_journals, server_logs, server_start, server_status, server_stop
from dsv41ctl.errors import CheckFailed, HostError
from dsv41ctl.plan import Word


def _run(tiny) -> Path:
    return tiny.home("t0") / "o" / "run"


def test_start_status_stop(tiny) -> None:
    first = tiny.run(server_start)
    assert [step.title for step in first.steps] == [
        f"put the manifest to {_run(tiny)}/manifest.json",
        "start engram_server",
    ]
    seen = tiny.run(server_status)[0]
    assert seen.running
    assert seen.status is not None
    assert seen.status.ready
    assert seen.status.listeners == tiny.cluster.table_hosts[0].listeners
    assert any("loading" in line for line in tiny.lines)
    assert any("ready: layer 1 verified" in line for line in tiny.lines)
    pid = seen.pid
    again = tiny.run(server_start)
    assert again.word is Word.UNCHANGED
    assert tiny.run(server_status)[0].pid == pid
    assert "engram_server: starting" in tiny.run(server_logs)["t0"]
    assert tiny.run(server_stop).word is Word.CHANGED
    assert not Path(f"/proc/{pid}").exists()
    assert tiny.run(server_status)[0].running is False
    assert tiny.run(server_stop).word is Word.UNCHANGED


def test_it_outlives_its_starter(tiny) -> None:
    tiny.run(server_start)
    pid = tiny.run(server_status)[0].pid
    assert os.getsid(pid) != os.getsid(0)


def test_other_arguments_are_refused_not_restarted(tiny) -> None:
    tiny.run(server_start)
    tiny.changed("table_hosts", threads=3)
    with pytest.raises(HostError, match="runs with other arguments") as caught:
        tiny.run(server_start)
    assert "server stop" in str(caught.value.hint)


@pytest.mark.parametrize(("what", "match"), [("manifest", "another manifest"), ("binary", "another build")])
def test_another_manifest_or_build_is_refused(tiny, what: str, match: str) -> None:
    tiny.run(server_start)
    path = tiny.root / ("model/manifest.json" if what == "manifest" else "bin/engram_server")
    changed = path.read_text() + "\n"
    path.rename(path.with_suffix(".old"))
    path.write_text(changed)
    path.chmod(0o755)
    with pytest.raises(HostError, match=match):
        tiny.run(server_start)


def test_the_logs_reason_when_it_ends(tiny) -> None:
    tiny.changed("table_hosts", extra_args=["--fail", "127.0.0.1:18610: address in use", "--status", "1"])
    with pytest.raises(HostError, match=r"ended with status 1: 127\.0\.0\.1:18610: address in use") as caught:
        tiny.run(server_start)
    assert caught.value.host == "t0"


def test_a_table_that_does_not_match_is_a_check_that_says_no(tiny) -> None:
    tiny.changed("table_hosts", extra_args=["--fail", "layer 1 weight segment 3 does not match", "--status", "3"])
    with pytest.raises(CheckFailed, match="layer 1 weight segment 3"):
        tiny.run(server_start)


def test_one_that_does_not_get_ready_is_ended(tiny) -> None:
    tiny.changed("table_hosts", extra_args=["--never-ready"], ready_timeout_s=1.5)
    with pytest.raises(HostError, match=r"not ready after 1\.5 s"):
        tiny.run(server_start)
    assert tiny.run(server_status)[0].running is False


@pytest.mark.parametrize("extra", [["--never-ready"], ["--slow-pid"]])
def test_ctrl_c_leaves_no_server(tiny, state: Path, extra: list[str]) -> None:
    tiny.changed("table_hosts", extra_args=extra)

    def interrupt() -> None:
        deadline = time.monotonic() + 10
        while not (_run(tiny) / "server.log").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        tiny.run(server_start)
    assert list_journals()[-1].verdict == "interrupted"
    time.sleep(0.3)
    control = str(_run(tiny) / "control.sock")
    left = subprocess.run(["pgrep", "-f", control], capture_output=True, text=True, check=False, timeout=10).stdout
    assert left == ""


def test_a_pid_that_is_somebody_elses_is_left_alone(tiny) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        _run(tiny).mkdir(parents=True)
        (_run(tiny) / "server.pid").write_text(str(other.pid))
        assert tiny.run(server_status)[0].running is False
        assert tiny.run(server_stop).word is Word.UNCHANGED
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_not_built(tiny) -> None:
    tiny.changed("table_hosts", binary="engram_server")
    with pytest.raises(HostError, match="is not there") as caught:
        tiny.run(server_start)
    assert caught.value.hint == "dsv41ctl server build"


def test_an_own_manifest_on_the_table_host(tiny) -> None:
    own = tiny.home("t0") / "own.json"
    own.parent.mkdir(parents=True)
    own.write_text("{}")
    tiny.changed("table_hosts", manifest="~/own.json")
    outcome = tiny.run(server_start)
    assert [step.title for step in outcome.steps] == ["start engram_server"]
    record = json.loads((_run(tiny) / "start.json").read_text())
    assert str(own) in record["argv"]
    assert tiny.run(server_start).word is Word.UNCHANGED


def test_a_dry_run_starts_nothing(tiny) -> None:
    outcome = tiny.run(server_start, dry_run=True)
    assert outcome.word is Word.WOULD
    assert outcome.steps[-1].argv[1] == "serve"
    assert not _run(tiny).exists()


def test_a_status_that_cannot_be_read_is_no_ready_server(tiny) -> None:
    tiny.run(server_start)
    (_run(tiny) / "control.sock").write_text("{}")
    seen = tiny.run(server_status)[0]
    assert seen.running
    assert seen.status is None
    assert "cannot be read" in str(seen.problem)
