"""The process runtime with a real, tiny serve."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsv41ctl.config import Cluster
from dsv41ctl.errors import HostError
from dsv41ctl.hosts import LocalHost
from dsv41ctl.runtimes import ProcessRuntime

SERVE = """
import os, signal, subprocess, sys, time
print("hello from rank", sys.argv[sys.argv.index("--rank") + 1], "in", os.getcwd(), flush=True)
mode = os.environ.get("MODE", "")
if mode == "exit":
    sys.exit(7)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "child":
    child = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"])
    print("child", child.pid, flush=True)
if mode == "clean":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("up", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    return LocalHost("spark", str(tmp_path / "home"))


@pytest.fixture
def make(lab: Cluster, tmp_path: Path, host: LocalHost) -> Iterator[Callable[..., ProcessRuntime]]:
    image = tmp_path / "image"
    (image / "tiny").mkdir(parents=True)
    (image / "tiny" / "__init__.py").write_text("")
    (image / "tiny" / "engram.py").write_text("# the image's own\n")
    (image / "tiny" / "serve.py").write_text(SERVE)
    made: list[ProcessRuntime] = []

    def build(**serve: object) -> ProcessRuntime:
        values = {"command": ["-m", "tiny.serve", "--rank", "{rank}"], "stop_timeout_s": 5.0, **serve}
        cluster = lab.model_copy(
            update={
                "serve": lab.serve.model_copy(update=values),
                "image": lab.image.model_copy(update={"engram_path": "tiny/engram.py", "module": "tiny.engram"}),
            }
        )
        made.append(ProcessRuntime(cluster, interpreter=sys.executable, image=image))
        return made[-1]

    yield build
    for runtime in made:
        runtime.stop(host, lab.nodes[0])


def _until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_nothing_there(make, host, lab) -> None:
    runtime = make()
    assert runtime.state(host, lab.nodes[0]).as_json() == {
        "running": False, "exists": False, "start_id": None, "started_at": None, "pid": None, "exit_status": None,
        "argv": [], "environment": None,
    }  # fmt: skip
    assert runtime.logs(host, lab.nodes[0]) == ""
    assert runtime.stop(host, lab.nodes[0]) is False


def test_start_reads_back_what_really_runs(make, host, lab) -> None:
    runtime, node = make(), lab.nodes[0]
    state = runtime.start(host, node, "B")
    assert state.running
    assert state.pid is not None
    assert state.started_at is not None
    wanted = runtime.environment(node, "B", host.home)
    assert state.environment is not None
    assert {name: state.environment.get(name) for name in wanted} == wanted
    assert state.environment["HOME"] == host.home
    assert set(state.environment) == {*wanted, "HOME", "PATH", "LANG"}
    assert list(state.argv) == [sys.executable, "-m", "tiny.serve", "--rank", "0"]
    again = runtime.state(host, node)
    assert again == state
    _until(lambda: "up" in runtime.logs(host, node))
    assert runtime.logs(host, node).splitlines()[0] == f"hello from rank 0 in {host.home}"


def test_it_outlives_whoever_started_it(make, host, lab, tmp_path: Path) -> None:
    runtime, node = make(), lab.nodes[0]
    state = runtime.start(host, node, "A")
    assert os.getsid(state.pid) != os.getsid(0)
    assert os.getpgid(state.pid) == state.pid
    lock = host.home + "/run/dsv41-serve/lock"
    assert subprocess.run(["flock", "-n", lock, "true"], check=False, timeout=5).returncode == 0


def test_two_starts_at_once_are_one(make, host, lab) -> None:
    runtime, node = make(), lab.nodes[0]
    first = runtime.start(host, node, "A")
    with pytest.raises(HostError, match=f"already running with pid {first.pid}"):
        runtime.start(host, node, "A")
    assert runtime.state(host, node).start_id == first.start_id


def test_stop_is_gone(make, host, lab) -> None:
    runtime, node = make(environment={"MODE": "clean"}), lab.nodes[0]
    state = runtime.start(host, node, "A")
    assert runtime.stop(host, node) is True
    assert not Path(f"/proc/{state.pid}").exists()
    after = runtime.state(host, node)
    assert (after.running, after.exists) == (False, False)
    assert runtime.stop(host, node) is False


@pytest.mark.parametrize("mode", ["stubborn", "child"])
def test_what_ignores_sigterm_is_killed_with_its_children(make, host, lab, mode: str) -> None:
    runtime, node = make(environment={"MODE": mode}, stop_timeout_s=1.0), lab.nodes[0]
    state = runtime.start(host, node, "A")
    _until(lambda: "up" in runtime.logs(host, node))
    children = [int(line.split()[1]) for line in runtime.logs(host, node).splitlines() if line.startswith("child")]
    begun = time.monotonic()
    assert runtime.stop(host, node) is True
    assert 0.9 < time.monotonic() - begun < 8
    for pid in (state.pid, *children):
        assert not _lives(pid)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_serve_that_ends_by_itself_keeps_status_and_log(make, host, lab) -> None:
    runtime, node = make(environment={"MODE": "exit"}), lab.nodes[0]
    runtime.start(host, node, "A")
    _until(lambda: runtime.state(host, node).exit_status is not None)
    state = runtime.state(host, node)
    assert (state.running, state.exists, state.exit_status) == (False, True, 7)
    assert "hello" in runtime.logs(host, node)


def test_a_killed_serve_shows_the_signal(make, host, lab) -> None:
    runtime, node = make(), lab.nodes[0]
    state = runtime.start(host, node, "A")
    os.kill(state.pid, signal.SIGKILL)
    _until(lambda: runtime.state(host, node).exit_status == -signal.SIGKILL)


def test_logs_are_of_this_start_alone(make, host, lab) -> None:
    runtime, node = make(), lab.nodes[0]
    for _ in range(8):
        runtime.start(host, node, "A")
        _until(lambda: "up" in runtime.logs(host, node))
        assert runtime.logs(host, node).count("hello") == 1
        runtime.stop(host, node)
    assert len(list(Path(host.home, "run", "dsv41-serve").glob("log-*"))) == 5


def test_a_pid_that_is_somebody_elses_is_left_alone(make, host, lab) -> None:
    runtime, node = make(), lab.nodes[0]
    state = runtime.start(host, node, "A")
    runtime.stop(host, node)
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        slot = Path(host.home, "run", "dsv41-serve")
        (slot / "pid").write_text(f'{{"pid": {other.pid}, "ticks": 1}}')
        seen = runtime.state(host, node)
        assert (seen.running, seen.exists) == (False, True)
        assert seen.start_id == state.start_id
        runtime.stop(host, node)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_what_cannot_start_says_why(make, host, lab) -> None:
    runtime = make(command=["-m", "tiny.serve"])
    with pytest.raises(HostError, match=r"serve cannot start: FileNotFoundError.*no/such"):
        runtime._slot(host, "start", stdin=b'{"start_id": "x", "argv": ["/no/such"], "env": {}, "cwd": "/"}')
    assert runtime.state(host, lab.nodes[0]).exists is False


def test_image_file_and_run_in_image(make, host, lab) -> None:
    runtime, node = make(), lab.nodes[0]
    assert runtime.image_file(host) == b"# the image's own\n"
    code = "import os, sys, tiny.engram as e; print(e.__file__, os.environ['VLLM_ENGRAM_REMOTE_ROOT'], sys.argv[1:]); sys.exit(5)"
    done = runtime.run_in_image(host, node, ["-c", code, "~/x"], timeout=20)
    assert done.status == 5
    assert done.stdout.split()[0].endswith("/image/tiny/engram.py")
    assert f"{host.home}/x" in done.stdout
    assert host.home in done.stdout.split()[1]
