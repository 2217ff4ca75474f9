import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv41ctl import __version__
from dsv41ctl.config import Cluster
from dsv41ctl.errors import Dsv41Error
from dsv41ctl.plan import (
    OVERLAY,
    STAGED,
    Nothing,
    PutFile,
    RemoveFile,
    RemoveTree,
    RestoreFile,
    Staged,
    Word,
    plan_purge,
    plan_put_tree,
    plan_stage,
    server_tree,
    stage_tree,
)

RENDERED = SimpleNamespace(text="# overlay\n", sha256=hashlib.sha256(b"# overlay\n").hexdigest(), image_sha256="1" * 64)
NAMES = st.sampled_from(["a.py", "b.h", "py/x.py", "py/y.py", "staged.json", "py/__pycache__/x.pyc"])


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _staged(tree: dict[str, bytes]) -> dict[str, str]:
    return {path: _sha(data) for path, data in tree.items()}


def test_our_rooms_land_on_the_seeds_paths(lab: Cluster, rooms: tuple[Path, Path]) -> None:
    tree = stage_tree(lab, *rooms, RENDERED, b"{}")
    assert sorted(tree) == [
        "manifest.json",
        "offload/engram/spark/engram.py",
        "offload/engram/spark/engram_remote.cpp",
        "offload/engram/spark/py/dsv41_engram_remote.py",
        "offload/engram/spark/py/sitecustomize.py",
        "offload/engram/spark/tools/verify_rows.py",
        "offload/reader/remote_table.h",
        "offload/transport/ofl.cpp",
        "offload/transport/ofl.h",
        "staged.json",
    ]
    assert list(tree)[-1] == STAGED


def test_staged_json_vouches_for_every_other_file(lab: Cluster, rooms: tuple[Path, Path]) -> None:
    tree = stage_tree(lab, *rooms, RENDERED, b"{}")
    staged = Staged.parse(tree[STAGED])
    assert dict(staged.files) == {path: _sha(data) for path, data in tree.items() if path != STAGED}
    assert (staged.overlay_sha256, staged.image_sha256) == (RENDERED.sha256, RENDERED.image_sha256)
    assert (staged.edit_set, staged.version) == ("lab", __version__)
    assert tree[STAGED] == stage_tree(lab, *rooms, RENDERED, b"{}")[STAGED]


def test_what_is_not_known_is_left_out(lab: Cluster, rooms: tuple[Path, Path]) -> None:
    tree = stage_tree(lab, *rooms, None, b"{}")
    assert OVERLAY not in tree
    assert STAGED not in tree


def test_an_empty_room_is_an_error(lab: Cluster, rooms: tuple[Path, Path]) -> None:
    for path in (rooms[0] / "reader").iterdir():
        path.unlink()
    with pytest.raises(Dsv41Error, match="reader"):
        stage_tree(lab, *rooms, RENDERED, b"{}")


def test_a_table_host_gets_what_builds_the_server(rooms: tuple[Path, Path]) -> None:
    tree = server_tree(rooms[0])
    assert {"CMakeLists.txt", "transport/ofl_server.h", "server/main.cpp", "tools/engram_check.cpp"} <= set(tree)
    assert not any(path.startswith(("tests/", "fuzz/", "reader/")) for path in tree)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"files": 1}', b"\xff", json.dumps({"files": {}}).encode()])
def test_a_broken_staged_json_is_an_error(data: bytes) -> None:
    with pytest.raises(Dsv41Error, match=r"staged\.json cannot be read"):
        Staged.parse(data)


def test_first_changed_second_unchanged(lab: Cluster, rooms: tuple[Path, Path]) -> None:
    tree = stage_tree(lab, *rooms, RENDERED, b"{}")
    first = plan_stage(lab, "spark", tree, {})
    assert {step.state for step in first} == {Word.WOULD}
    assert isinstance(first[-1].action, PutFile)
    assert first[-1].action.path == f"{lab.paths.stage}/{STAGED}"
    second = plan_stage(lab, "spark", tree, _staged(tree))
    assert len(second) == len(first)
    assert {step.state for step in second} == {Word.UNCHANGED}


def test_a_stray_goes_before_staged_json_comes(lab: Cluster, rooms: tuple[Path, Path]) -> None:
    tree = stage_tree(lab, *rooms, RENDERED, b"{}")
    seen = {**_staged(tree), "offload/reader/old.cpp": "0" * 64, STAGED: "0" * 64}
    steps = [step for step in plan_stage(lab, "spark", tree, seen) if step.state is Word.WOULD]
    assert [type(step.action) for step in steps] == [RemoveFile, PutFile]
    assert steps[0].undo == RestoreFile(f"{lab.paths.stage}/offload/reader/old.cpp")
    assert steps[1].undo == RestoreFile(f"{lab.paths.stage}/{STAGED}")


def test_byte_code_stays_until_a_file_beside_it_changes(lab: Cluster) -> None:
    desired = {"py/x.py": b"1", "other.h": b"2"}
    cache = {"py/__pycache__/x.pyc": "5" * 64}
    quiet = plan_stage(lab, "spark", desired, {"py/x.py": _sha(b"1"), "other.h": _sha(b"old"), **cache})
    assert not any(isinstance(step.action, RemoveFile) for step in quiet)
    loud = plan_stage(lab, "spark", desired, {"py/x.py": _sha(b"old"), "other.h": _sha(b"2"), **cache})
    assert [step.action for step in loud if isinstance(step.action, RemoveFile)] == [
        RemoveFile(f"{lab.paths.stage}/py/__pycache__/x.pyc")
    ]


@given(
    st.dictionaries(NAMES, st.binary(max_size=3), max_size=5), st.dictionaries(NAMES, st.binary(max_size=3), max_size=5)
)
def test_a_plan_applied_gives_what_is_desired_and_undone_gives_what_was(
    desired: dict[str, bytes], before: dict[str, bytes]
) -> None:
    steps = plan_put_tree("h", "/r", desired, _staged(before), verb="put")
    world = {f"/r/{path}": data for path, data in before.items()}
    undo: list[tuple[str, bytes | None]] = []
    for step in steps:
        match step.action:
            case PutFile(path=path, data=data):
                assert step.undo == (RestoreFile(path) if path in world else RemoveFile(path))
                undo.append((path, world.get(path)))
                world[path] = data
            case RemoveFile(path=path):
                undo.append((path, world.pop(path)))
            case action:
                assert action == Nothing()
                assert step.state is Word.UNCHANGED
    assert {path: data for path, data in world.items() if "__pycache__" not in path} == {
        f"/r/{path}": data for path, data in desired.items() if "__pycache__" not in path
    }
    for path, data in reversed(undo):
        if data is None:
            del world[path]
        else:
            world[path] = data
    assert world == {f"/r/{path}": data for path, data in before.items()}


def test_purge(lab: Cluster) -> None:
    assert plan_purge(lab, "spark", {})[0].state is Word.UNCHANGED
    assert plan_purge(lab, "spark", {"a": "b"})[0].action == RemoveTree(lab.paths.stage, lab.paths.cache)
