import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from engram_files import flip, leftovers
from typer.testing import CliRunner

from dsv41ctl.cli.context import Options
from dsv41ctl.cli.tables import app
from dsv41ctl.engram.manifest import Manifest, load_manifest
from dsv41ctl.errors import CheckFailed, Dsv41Error, UsageError, exit_code

Run = Callable[..., Result]
RunJson = Callable[..., Any]

CLUSTER = """
name = "small"
[tables]
model_dir = "{model}"
manifest = "{model}/sub/manifest.json"
[image]
reference = "lab"
[serve]
url = "http://127.0.0.1:1"
[[nodes]]
name = "a"
rank = 0
link = {{ scheme = "tcp", listener = "127.0.0.1:18610", local = "127.0.0.1" }}
[[nodes]]
name = "b"
rank = 1
link = {{ scheme = "tcp", listener = "127.0.0.1:18610", local = "127.0.0.1" }}
[[nodes]]
name = "c"
rank = 2
link = {{ scheme = "tcp", listener = "127.0.0.1:18610", local = "127.0.0.1" }}
[[table_hosts]]
name = "t"
model_dir = "{model}"
listeners = ["127.0.0.1:18610"]
"""


@pytest.fixture
def run() -> Run:
    def invoke(*arguments: object, **options: Any) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], obj=Options(**options))

    return invoke


@pytest.fixture
def run_json(run: Run) -> RunJson:
    def invoke(*arguments: object, **options: Any) -> Any:
        result = run(*arguments, json=True, **options)
        return json.loads(result.stdout)

    return invoke


def test_from_nothing_to_a_verified_packed_set(run: Run, run_json: RunJson, tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    at = ("--model-dir", model)
    assert run_json("synth", *at, "--vocab-size", 64, dry_run=True)["step"] == "would change"
    assert not model.exists()
    assert run_json("synth", *at, "--vocab-size", 64)["step"] == "changed"
    assert run_json("synth", *at, "--vocab-size", 64)["step"] == "unchanged"
    assert run_json("manifest", *at, dry_run=True)["step"] == "would change"
    assert not (model / "manifest.json").exists()
    made = run_json("manifest", *at)
    assert made["step"] == "changed"
    assert run_json("manifest", *at)["step"] == "unchanged"
    assert run_json("manifest", *at, "--rehash")["step"] == "unchanged"
    checked = run_json("verify", *at)
    assert checked["ok"] is True
    assert checked["identities"] == made["identities"]
    assert run_json("pack", *at, "--out", out, dry_run=True)["steps"] == {
        "engram-layer-01.dsv41pack": "would change",
        "engram-layer-14.dsv41pack": "would change",
    }
    assert set(run_json("pack", *at, "--out", out)["steps"].values()) == {"changed"}
    assert set(run_json("pack", *at, "--out", out)["steps"].values()) == {"unchanged"}
    assert run_json("verify", "--model-dir", out)["identities"] == made["identities"]
    assert run("verify", "--model-dir", out).stdout.startswith("verified ")
    assert leftovers(tmp_path) == []


def test_a_mismatch_is_exit_3_and_is_listed(run: Run, checkpoint: Path, manifest: Manifest) -> None:
    for layer in (1, 14):
        plane = manifest.table(layer).scale
        flip(checkpoint / plane.file, plane.offset)
    result = run("verify", "--model-dir", checkpoint, json=True)
    assert isinstance(result.exception, CheckFailed)
    assert exit_code(result.exception) == 3
    assert "2 of" in str(result.exception)
    report = json.loads(result.stdout)
    assert [(bad["layer"], bad["plane"], bad["segment"]) for bad in report["mismatches"]] == [
        (1, "scale", 0),
        (14, "scale", 0),
    ]
    assert report["ok"] is False
    text = run("verify", "--model-dir", checkpoint, "--first").stdout
    assert "layer 1 scale segment 0: bytes [" in text or "layer 14 scale segment 0: bytes [" in text
    result = run("verify", "--model-dir", checkpoint, "--layer", 14, "--fresh", json=True)
    assert [bad["layer"] for bad in json.loads(result.stdout)["mismatches"]] == [14]


def test_a_changed_checkpoint_says_what_changed(run_json: RunJson, checkpoint: Path, manifest: Manifest) -> None:
    plane = manifest.table(1).weight
    flip(checkpoint / plane.file, plane.offset)
    made = run_json("manifest", "--model-dir", checkpoint)
    assert made["step"] == "changed"
    assert any(line.startswith("layer 1 weight.digest") for line in made["differences"])
    assert load_manifest(checkpoint / "manifest.json").identities[14] == manifest.identities[14]


def test_a_dry_verify_reads_nothing(run_json: RunJson, checkpoint: Path, manifest: Manifest) -> None:
    report = run_json("verify", "--model-dir", checkpoint, dry_run=True)
    assert report["step"] == "would read"
    assert report["bytes"] == manifest.total_bytes


def test_places_come_from_the_cluster_file(run: Run, run_json: RunJson, checkpoint: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(CLUSTER.format(model=checkpoint))
    made = run_json("manifest", cluster=cluster)
    assert made["manifest"] == str(checkpoint / "sub" / "manifest.json")
    assert run_json("verify", cluster=cluster)["ok"] is True
    assert [len(one["ranges"]) for one in run_json("show", cluster=cluster)["layers"]] == [3, 3]
    assert [len(one["ranges"]) for one in run_json("show", "--tp", 4, cluster=cluster)["layers"]] == [4, 4]
    elsewhere = run("verify", "--model-dir", tmp_path, cluster=cluster).exception
    assert isinstance(elsewhere, Dsv41Error)
    assert str(tmp_path / "manifest.json") in str(elsewhere)


def test_nowhere_to_look_is_a_usage_error(run: Run) -> None:
    for verb in ("manifest", "verify", "synth", "show"):
        error = run(verb).exception
        assert isinstance(error, UsageError)
        assert "--model-dir" in str(error)


def test_show_with_and_without_a_manifest(run: Run, run_json: RunJson, checkpoint: Path, manifest: Manifest) -> None:
    text = run("show", "--model-dir", checkpoint).stdout
    assert f"layer 14: {manifest.table(14).rows} rows, identity {manifest.identities[14]}" in text
    assert (
        f"rank 1/2: rows [{manifest.geometry.shard(14, 1, 2).start}, {manifest.table(14).rows}), heads 12..23" in text
    )
    with_it = run_json("show", "--model-dir", checkpoint)["layers"][0]["planes"][0]
    assert with_it["digest"] == manifest.table(1).weight.digest
    (checkpoint / "manifest.json").unlink()
    assert "unknown (no manifest)" in run("show", "--model-dir", checkpoint).stdout
    without = run_json("show", "--model-dir", checkpoint)["layers"][0]
    assert without["identity"] is None
    assert without["planes"][0]["offset"] == manifest.table(1).weight.offset


def test_stdout_is_json_and_nothing_else(run: Run, checkpoint: Path) -> None:
    result = run("verify", "--model-dir", checkpoint, json=True)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["complete"] is True
    assert "\x1b" not in result.output
