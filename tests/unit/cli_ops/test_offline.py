"""What the verbs render for the two clusters that ship, with nothing opened at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

SEED = """\
PYTHONPATH=/root/.cache/dsv41-offload/offload/engram/spark/py
DSV41_ENGRAM_OVERLAY=/root/.cache/dsv41-offload/offload/engram/spark/engram.py
VLLM_ENGRAM_REMOTE_ROOT=/root/.cache/dsv41-offload
VLLM_ENGRAM_REMOTE=rdma://10.202.28.1:18610@10.202.28.2,rdma://10.202.29.1:18610@10.202.29.2
VLLM_ENGRAM_REMOTE_TIMEOUT_MS=100 VLLM_ENGRAM_REMOTE_RETRY_MS=5000 VLLM_ENGRAM_REMOTE_REQUIRED=1 VLLM_ENGRAM_REMOTE_LOG_S=60
"""
VERBS = [
    ("stage",), ("stage", "--purge"), ("prebuild",), ("start", "--arm", "A"), ("start", "--arm", "B"), ("stop",),
    ("server", "build"), ("server", "start"), ("server", "stop"),
]  # fmt: skip


@pytest.mark.usefixtures("rooms", "sealed")
class TestOffline:
    def test_env_is_the_seeds_block(self, run) -> None:
        assert run("spark.toml", "--offline", "env").stdout == SEED
        assert run("spark.toml", "--offline", "env", "--arm", "A").stdout.strip() == ""

    def test_env_as_json_has_one_string_a_variable(self, document) -> None:
        found = document("spark.toml", "--offline", "env")
        assert found == dict(word.partition("=")[::2] for word in SEED.split())

    @pytest.mark.parametrize("verb", VERBS, ids=" ".join)
    def test_every_verb_renders_spark(self, run, document, verb: tuple[str, ...], snapshot: SnapshotAssertion) -> None:
        assert run("spark.toml", "--offline", *verb).stdout == snapshot(name="text")
        found = document("spark.toml", "--offline", *verb)
        assert found["word"] == "would change"
        assert found == snapshot(name="json")

    @pytest.mark.parametrize("verb", VERBS, ids=" ".join)
    def test_every_verb_renders_the_lab(self, document, verb: tuple[str, ...]) -> None:
        found = document("lab.toml", "--offline", *verb)
        assert found["word"] == "would change"
        steps = found["steps"]
        assert isinstance(steps, list)
        hosts = {step["host"] for step in steps}
        assert hosts == ({"x86host"} if verb[0] == "server" else {"spark", "spark-b"})

    def test_nothing_is_written(self, run, rooms: Path) -> None:
        run("lab.toml", "--offline", "stage")
        assert not (rooms / "state").exists()
        assert not Path("/lab").exists()

    def test_the_unit(self, run) -> None:
        text = run("spark.toml", "--offline", "server", "unit").stdout
        assert "ExecStart=%h/dsv41-offload/bin/engram_server serve" in text
        assert "[Install]" in text

    def test_a_credential_shows_nowhere(self, run, rooms: Path) -> None:
        from dsv41ctl import assets

        text = (assets.configs() / "spark.toml").read_text()
        own = rooms / "own.toml"
        own.write_text(text.replace("[serve.environment]", '[serve.environment]\nHF_TOKEN = "s3ntinel"'))
        outputs = [run(own, "--offline", *verb, *json).output for verb in VERBS for json in ((), ("--json",))]
        assert not any("s3ntinel" in output for output in outputs)
        assert any("HF_TOKEN=****" in output for output in outputs)


def _main(*argv: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", "from dsv41ctl.cli import main; main()", *argv],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **env},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (("env",), 2, ["no cluster file", "next: dsv41ctl --cluster FILE"]),
        (("--cluster", "/no/such.toml", "env"), 2, ["/no/such.toml", "No such file"]),
        (("--cluster", "configs/spark.toml", "--offline", "status"), 2, ["nothing to say offline"]),
        (("--cluster", "configs/spark.toml", "--offline", "server", "status"), 2, ["nothing to say offline"]),
    ],
)
def test_an_error_is_one_line_on_stderr(argv: tuple[str, ...], status: int, words: list[str]) -> None:
    done = _main(*argv, DSV41_CLUSTER="")
    assert done.returncode == status
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert all(word in done.stderr for word in words)


def test_a_destructive_step_without_anybody_to_ask(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from dsv41ctl.cli import main; main()", "--cluster", "configs/lab.toml", "stage", "--purge"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "DSV41_LAB_ROOT": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "--yes" in done.stderr


def test_status_of_a_lab_that_is_not_up(tmp_path: Path) -> None:
    env = {"DSV41_LAB_ROOT": str(tmp_path), "DSV41_STATE_DIR": str(tmp_path / "state")}
    done = _main("--cluster", "configs/lab.toml", "status", **env)
    assert done.returncode == 0, done.stderr
    assert "cluster: stopped" in done.stdout
    assert not (tmp_path / "state").exists()
    server = _main("--cluster", "configs/lab.toml", "server", "status", **env)
    assert server.returncode == 3
    assert server.stdout.strip() == "x86host: stopped"
