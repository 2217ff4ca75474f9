import os
import signal
import threading
import time
from pathlib import Path

import pytest

from dsv41ctl.errors import CommandFailed, Exit, HostError, HostUnreachable, MixedState, exit_code
from dsv41ctl.hosts import Host, LocalHost, RecordingHost, gather, parallel


def _hosts(tmp_path: Path, count: int = 3) -> list[Host]:
    return [LocalHost(f"h{number}", str(tmp_path / f"h{number}")) for number in range(count)]


def test_all_finish_at_once(tmp_path: Path) -> None:
    begun = time.monotonic()
    found = parallel(_hosts(tmp_path), lambda host: host.run(("sh", "-c", "sleep 0.6; pwd"), timeout=10).stdout.strip())
    assert list(found) == ["h0", "h1", "h2"]
    assert [Path(path).name for path in found.values()] == ["h0", "h1", "h2"]
    assert time.monotonic() - begun < 1.6


def test_one_error_is_raised_after_the_others_finished(tmp_path: Path) -> None:
    done: list[str] = []

    def work(host: Host) -> None:
        if host.name == "h0":
            raise HostUnreachable("gone", host=host.name)
        time.sleep(0.3)
        done.append(host.name)

    with pytest.raises(HostUnreachable, match="h0: gone"):
        parallel(_hosts(tmp_path), work)
    assert sorted(done) == ["h1", "h2"]


def test_several_errors_are_a_mixed_state_with_each_in_it(tmp_path: Path) -> None:
    def work(host: Host) -> None:
        if host.name != "h1":
            raise HostError(f"no {host.name}", host=host.name, hint="do this")

    with pytest.raises(MixedState) as caught:
        parallel(_hosts(tmp_path), work)
    assert "2 of 3 hosts failed: h0: no h0; h2: no h2" in str(caught.value)
    assert caught.value.hint == "do this"
    assert exit_code(caught.value) == Exit.MIXED


def test_all_failed_is_no_mixed_state(tmp_path: Path) -> None:
    def work(host: Host) -> None:
        host.run(("false",), timeout=5)

    with pytest.raises(HostError, match="3 hosts failed") as caught:
        parallel(_hosts(tmp_path), work)
    assert not isinstance(caught.value, MixedState | CommandFailed)


def test_gather_gives_errors_as_results(tmp_path: Path) -> None:
    found = gather(_hosts(tmp_path, 2), lambda host: 1 // (host.name == "h0"))
    assert found["h0"] == 1
    assert isinstance(found["h1"], ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        parallel(_hosts(tmp_path, 2), lambda host: 1 // (host.name == "h0"))


def test_ctrl_c_ends_what_runs_on_the_hosts(tmp_path: Path) -> None:
    pids = [tmp_path / f"pid{number}" for number in range(2)]

    def work(host: Host) -> None:
        path = pids[int(host.name[1])]
        host.run(("sh", "-c", 'echo $$ >"$1"; exec sleep 60', "sh", str(path)), timeout=60)

    def interrupt() -> None:
        while not all(path.exists() and path.read_text().strip() for path in pids):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        gather(_hosts(tmp_path, 2), work)
    assert time.monotonic() - begun < 10
    for path in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)
    # The flag is down again: undoing needs the hosts.
    assert parallel(_hosts(tmp_path, 1), lambda host: host.run(("true",), timeout=5).status) == {"h0": 0}


def test_a_recording_host_opens_nothing_and_answers_nothing() -> None:
    host = RecordingHost("spark")
    host.put(b"x", "~/a")
    host.remove_tree("~/a", under="~")
    assert host.files == {"$HOME/a": b"x"}
    for ask in (
        lambda: host.run(("docker", "ps"), timeout=1),
        lambda: host.get("~/a"),
        lambda: host.exists("~/a"),
        lambda: host.sha256_tree("~"),
    ):
        with pytest.raises(HostError, match="offline"):
            ask()
    assert host.commands == [("rm", "-rf", "--", "$HOME/a"), ("docker", "ps")]
