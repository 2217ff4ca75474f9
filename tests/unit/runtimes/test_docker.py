"""The docker runtime against a stand-in for the docker command that keeps containers in a directory."""

import json
import sys
from pathlib import Path

import pytest

from dsv41ctl.config import Cluster
from dsv41ctl.errors import CommandFailed, HostError
from dsv41ctl.hosts import LocalHost
from dsv41ctl.runtimes import DockerRuntime
from dsv41ctl.runtimes.docker import parse_inspect

DOCKER = """#!{python}
import json, os, pathlib, sys
root = pathlib.Path({root!r})
argv = sys.argv[1:]
with (root / "calls").open("a") as calls:
    calls.write(json.dumps(argv) + "\\n")
box = root / "box.json"
if (root / "refuse").exists():
    sys.exit("Cannot connect to the Docker daemon")
if argv[0] == "run" and "-d" in argv:
    if box.exists():
        sys.exit("Conflict. The container name is already in use")
    env = [argv[i + 1] for i, word in enumerate(argv) if word == "-e"]
    state = {{"Running": True, "StartedAt": "2026-12-01T00:00:01.5Z", "ExitCode": 0, "Pid": 42}}
    box.write_text(json.dumps({{"Id": "c0ffee" * 10, "State": state, "Config": {{"Env": env}}, "Path": "vllm",
                               "Args": argv[argv.index({image!r}) + 1:]}}))
elif argv[0] == "run":
    at = argv.index({image!r})
    print("ran", argv[at + 1:])
    sys.exit(5 if "fail" in argv else 0)
elif argv[0] == "inspect":
    if not box.exists():
        print("[]")
        sys.exit("Error: No such container: " + argv[-1])
    print("[" + box.read_text() + "]")
elif argv[0] == "stop":
    found = json.loads(box.read_text()); found["State"]["Running"] = False; box.write_text(json.dumps(found))
elif argv[0] == "rm":
    if not (root / "sticky").exists():
        box.unlink()
elif argv[0] == "logs":
    print("out since", argv[argv.index("--since") + 1], flush=True); print("err", file=sys.stderr)
"""


@pytest.fixture
def root(tmp_path: Path, spark: Cluster, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "docker"
    folder.mkdir()
    program = folder / "docker"
    program.write_text(DOCKER.format(python=sys.executable, root=str(folder), image=spark.image.reference))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    return LocalHost("spark", str(tmp_path / "home"))


def test_start_state_logs_stop(root: Path, host: LocalHost, spark: Cluster) -> None:
    runtime, node = DockerRuntime(spark), spark.nodes[0]
    assert runtime.state(host, node).exists is False
    state = runtime.start(host, node, "B")
    assert state.running
    assert state.start_id == "c0ffeec0ffee@2026-12-01T00:00:01.5Z"
    assert state.environment == runtime.environment(node, "B", host.home)
    assert runtime.logs(host, node) == "out since 2026-12-01T00:00:01.5Z\nerr\n"
    assert runtime.stop(host, node) is True
    assert runtime.state(host, node).exists is False
    assert runtime.stop(host, node) is False
    calls = [json.loads(line)[0] for line in (root / "calls").read_text().splitlines()]
    assert calls[-5:] == ["stop", "rm", "inspect", "inspect", "inspect"]


def test_stopped_means_gone(root: Path, host: LocalHost, spark: Cluster) -> None:
    runtime, node = DockerRuntime(spark), spark.nodes[0]
    runtime.start(host, node, "A")
    (root / "sticky").touch()
    with pytest.raises(HostError, match="still there after docker rm"):
        runtime.stop(host, node)


def test_a_daemon_that_does_not_answer_is_no_stopped_serve(root: Path, host: LocalHost, spark: Cluster) -> None:
    (root / "refuse").touch()
    with pytest.raises(HostError, match="Cannot connect"):
        DockerRuntime(spark).state(host, spark.nodes[0])


def test_a_name_in_use(root: Path, host: LocalHost, spark: Cluster) -> None:
    runtime, node = DockerRuntime(spark), spark.nodes[0]
    runtime.start(host, node, "A")
    with pytest.raises(CommandFailed, match="already in use"):
        runtime.start(host, node, "B")


def test_run_in_image(root: Path, host: LocalHost, spark: Cluster) -> None:
    runtime, node = DockerRuntime(spark), spark.nodes[0]
    done = runtime.run_in_image(host, node, ["tool.py", "fail"], timeout=20, env={"X": "1"}, stdin=b"in")
    assert (done.status, done.stdout) == (5, "ran ['tool.py', 'fail']\n")
    call = json.loads((root / "calls").read_text())
    assert call[:3] == ["run", "--rm", "-i"]
    assert "X=1" in call
    assert "/srv/dsv41/model:/srv/dsv41/model:ro" in call


@pytest.mark.parametrize("text", ["", "[]", "{}", "[{}]", '[{"State": 1}]', "null"])
def test_a_document_that_cannot_be_read(text: str) -> None:
    with pytest.raises(HostError, match="cannot be read"):
        parse_inspect(text, "spark")
