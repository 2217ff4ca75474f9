"""verify_rows: the real script, a made-up reader that can misbehave, and a small server that can misbehave."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from engram_files import edit_json, flip
from engram_mini_server import MiniServer

from dsv41ctl.engram.manifest import Manifest
from overlays.tools import verify_rows

READER = Path(__file__).with_name("engram_fake_reader.py")
Verify = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def server(manifest: Manifest, checkpoint: Path) -> Iterator[MiniServer]:
    with MiniServer(manifest, checkpoint) as running:
        yield running


@pytest.fixture
def reader_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "py"
    directory.mkdir()
    (directory / "dsv41_engram_remote.py").write_text(READER.read_text())
    return directory


@pytest.fixture
def arguments(checkpoint: Path, server: MiniServer, reader_dir: Path) -> list[str]:
    where = ["--model-dir", str(checkpoint), "--root", str(checkpoint), "--reader-dir", str(reader_dir)]
    return ["--tp", "2", *where, "--url", server.url, "--lookup-rows", "512"]


@pytest.fixture
def verify(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Verify]:
    """Runs it in this process, since importing torch takes longer than the rest."""
    monkeypatch.setattr(sys, "path", [str(Path(verify_rows.__file__).parent), *sys.path])
    before = dict(os.environ)

    def run(*more: object, mode: str = "", rank: int = 1) -> tuple[int, dict[str, Any]]:
        os.environ["FAKE_READER"] = mode
        given: argparse.Namespace = verify_rows.parse([*arguments, "--rank", str(rank), *(str(one) for one in more)])
        status, report = verify_rows.outcome(given)
        json.dumps(report)
        report["text"] = verify_rows.render(report)
        return status, report

    yield run
    os.environ.clear()
    os.environ.update(before)
    sys.modules.pop("dsv41_engram_remote", None)


def test_every_row_of_a_rank_and_all_refusals(verify: Verify, manifest: Manifest) -> None:
    for rank in (0, 1):
        status, report = verify("--layer", 1, "--layer", 14, "--sample", 10**6, "--refusals", rank=rank)
        assert status == 0, report
        assert report["rank"] == rank
        assert report["verdict"] == "ok"
        assert report["refusals"]["tried"] == report["refusals"]["right"] == 12
        for one in report["layers"]:
            shard = manifest.geometry.shard(one["layer"], rank, 2)
            assert (one["start"], one["end"], one["sampled"]) == (shard.start, shard.end, shard.rows)
            assert one["rows_compared"] > shard.rows
            assert (one["bad"], one["first_bad"], one["fallbacks"]) == (0, [], 0)
            assert one["corner_cases"] >= 20


def test_one_wrong_row_is_found_and_named(verify: Verify, server: MiniServer, manifest: Manifest) -> None:
    shard = manifest.geometry.shard(14, 1, 2)
    server.corrupt = {shard.end - 1}
    status, report = verify("--layer", 14, "--sample", 0)
    assert status == 3
    (one,) = report["layers"]
    assert one["bad"] >= 2
    assert set(one["first_bad"]) == {shard.end - 1}
    server.corrupt = {shard.start + 1001}
    status, report = verify("--layer", 14, "--sample", 10**6)
    assert status == 3
    assert f"bad [{shard.start + 1001}" in report["text"]


@pytest.mark.parametrize("mode", ["dead ids are not zero", "off by one", "wrong scale"])
def test_a_reader_that_mixes_rows_up_is_caught(verify: Verify, mode: str) -> None:
    assert verify("--layer", 1, "--sample", 100, mode=mode)[0] == 3


@pytest.mark.parametrize("mode", ["falls back once", "silently local"])
def test_rows_that_did_not_come_from_the_remote_prove_nothing(verify: Verify, mode: str) -> None:
    status, report = verify("--layer", 1, "--sample", 100, mode=mode)
    assert status == 5
    assert report["verdict"] == "inconclusive"
    assert report["layers"][0]["not_counted"] >= 144
    assert "did not come from the remote" in report["layers"][0]["reason"]


def test_a_wrong_refusal_fails(verify: Verify, server: MiniServer) -> None:
    server.wrong_code[-111] = -103
    status, report = verify("--layer", 1, "--sample", 10, "--refusals")
    assert status == 3
    assert "refusals: 10/12 right" in report["text"]
    assert "id below the range: expected -111, got -103" in report["text"]


def test_not_ready_is_inconclusive_and_refused_is_wrong(verify: Verify, server: MiniServer, checkpoint: Path) -> None:
    server.ready = False
    status, report = verify("--layer", 1)
    assert status == 5
    assert "-107" in report["error"]
    server.ready = True
    server.manifest = server.manifest.model_copy(update={"layers": (server.manifest.table(14),)})
    status, report = verify("--layer", 1)
    assert status == 3
    assert "OPEN refused by the server, status -102" in report["error"]


def test_another_local_shard_is_wrong_before_anything_is_asked(verify: Verify, checkpoint: Path) -> None:
    edit_json(checkpoint / "manifest.json", lambda data: data["layers"][0]["weight"].update(offset=8))
    status, report = verify("--layer", 1)
    assert status == 3
    assert "weight.offset: the shard says" in report["text"]


def test_a_damaged_local_row_is_a_difference(verify: Verify, checkpoint: Path, manifest: Manifest) -> None:
    plane, shard = manifest.table(1).scale, manifest.geometry.shard(1, 1, 2)
    flip(checkpoint / plane.file, plane.offset + shard.start * 8)
    status, report = verify("--layer", 1, "--sample", 0)
    assert status == 3
    assert shard.start in report["layers"][0]["first_bad"]


def test_what_was_found_before_a_failure_is_kept(verify: Verify, server: MiniServer, manifest: Manifest) -> None:
    server.manifest = manifest.model_copy(update={"layers": (manifest.table(1),)})
    server.corrupt = {manifest.geometry.shard(1, 1, 2).start}
    status, report = verify("--layer", 1, "--layer", 14, "--sample", 0)
    assert status == 3
    assert [one["layer"] for one in report["layers"]] == [1]
    assert report["layers"][0]["bad"] > 0
    assert "-102" in report["error"]
    assert report["seconds"] >= 0


def test_as_a_process_stdout_has_nothing_but_the_report(
    run_tool: Callable[..., CompletedProcess[str]], arguments: list[str], tmp_path: Path
) -> None:
    done = run_tool("verify_rows.py", *arguments, "--rank", 0, "--layer", 1, "--sample", 10, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "ok"
    assert "a compiler may print on stdout" in done.stderr
    done = run_tool(
        "verify_rows.py", *arguments, "--rank", 0, "--layer", 1, "--reader-dir", tmp_path / "none", "--json"
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"] == "trouble"
    assert "no reader" in done.stderr


def test_trouble(verify: Verify) -> None:
    assert verify("--layer", 9)[0] == 1
    assert verify("--layer", 1, "--tp", 7)[0] == 1
    assert verify("--layer", 1, "--rank", 2)[0] == 1
    status, report = verify("--layer", 1, "--url", "tcp://127.0.0.1:1")
    assert status == 5
    assert "no connection" in report["error"]


@pytest.mark.parametrize("wrong", [["--url", "ftp://x"], ["--lookup-rows", "0"], ["--sample", "-1"]])
def test_usage(arguments: list[str], wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        verify_rows.parse([*arguments, "--rank", "0", "--layer", "1", *wrong])
    assert caught.value.code == 2
