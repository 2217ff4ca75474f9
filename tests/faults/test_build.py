"""The extension is built once, whole, and a build that fails or is killed blocks nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.conftest import wait_until
from tests.staging import stage_reader


@pytest.fixture
def spark(models: tuple[Path, Path], tmp_path: Path) -> Path:
    return stage_reader(tmp_path / "stage", models[0] / "manifest.json")


def environment(spark: Path, extensions: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(spark / "py"), "TORCH_EXTENSIONS_DIR": str(extensions), **more}


def build(spark: Path, extensions: Path, code: str = "build.load()", **more: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", f"import dsv41_engram_build as build; {code}"]
    env = environment(spark, extensions, **more)
    return subprocess.run(argv, check=False, capture_output=True, text=True, env=env, timeout=120)


def compiler(path: Path, body: str) -> str:
    """A compiler that answers --version and does `body` for anything else."""
    path.write_text(f'#!/bin/sh\ncase "$1" in --version) echo "fake 1.0";; *) {body};; esac\n')
    path.chmod(0o755)
    return str(path)


def test_the_name_follows_from_all_that_the_binary_depends_on(spark: Path, tmp_path: Path) -> None:
    ask = "print(build.module_name())"
    names = [build(spark, tmp_path, ask).stdout.strip() for _ in range(2)]
    assert names[0] == names[1]
    assert names[0].startswith("vllm_engram_remote_")
    other = build(spark, tmp_path, ask, CXX=compiler(tmp_path / "cxx", "exit 1")).stdout.strip()
    with (spark.parents[1] / "reader/options.h").open("a") as file:
        file.write("// changed\n")
    changed = build(spark, tmp_path, ask).stdout.strip()
    assert len({names[0], other, changed}) == 3


def test_no_compiler_is_one_sentence(spark: Path, tmp_path: Path) -> None:
    ran = build(spark, tmp_path, CXX=str(tmp_path / "none"))
    assert "RuntimeError: no C++ compiler: " in ran.stderr
    assert "install g++" in ran.stderr


def test_a_failed_build_says_why_and_leaves_nothing(spark: Path, tmp_path: Path) -> None:
    extensions = tmp_path / "extensions"
    broken = compiler(tmp_path / "cxx", "echo 'ofl.cpp:1: error: this compiler is broken'; exit 1")
    ran = build(spark, extensions, CXX=broken)
    assert ran.returncode == 1
    assert "this compiler is broken" in ran.stderr
    assert [path.name for path in extensions.glob("*/*")] == ["build.flock"]


def test_a_killed_build_blocks_nothing(spark: Path, tmp_path: Path) -> None:
    extensions = tmp_path / "extensions"
    asleep = compiler(tmp_path / "cxx", f"touch {tmp_path}/begun; exec sleep 60")
    argv = [sys.executable, "-c", "import dsv41_engram_build as build; build.load()"]
    env = environment(spark, extensions, CXX=asleep)
    process = subprocess.Popen(argv, env=env, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        wait_until("the compiler", (tmp_path / "begun").exists, 60)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert list(extensions.glob("*/build-*"))
    # The same name again, as the same compiler says the same version; now it fails at once.
    compiler(tmp_path / "cxx", "echo 'error: second try'; exit 1")
    begun = time.monotonic()
    ran = build(spark, extensions, CXX=asleep)
    assert "second try" in ran.stderr
    assert time.monotonic() - begun < 60
    assert [path.name for path in extensions.glob("*/*")] == ["build.flock"]


def test_missing_sources_name_the_remedy(spark: Path, tmp_path: Path) -> None:
    (spark / "engram_remote.cpp").unlink()
    ran = build(spark, tmp_path)
    assert "the reader's sources are missing (stage them: dsv41ctl stage)" in ran.stderr
