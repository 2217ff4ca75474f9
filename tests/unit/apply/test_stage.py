import json
from pathlib import Path

import pytest

from dsv41ctl.apply import list_journals, open_session, read_journal, stage
from dsv41ctl.errors import CheckFailed, ConfigError, Dsv41Error, HostError, MixedState
from dsv41ctl.plan import OVERLAY, STAGED, Staged, Word


def _tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_the_first_stage_changes_the_second_does_not(tiny) -> None:
    first = tiny.run(stage)
    assert first.word is Word.CHANGED
    tree = _tree(tiny.staged("n0"))
    assert tree == _tree(tiny.staged("n1"))
    assert sorted(tree) == [
        "manifest.json", "offload/engram/spark/engram.py", "offload/engram/spark/engram_remote.cpp",
        "offload/engram/spark/py/sitecustomize.py", "offload/engram/spark/tools/verify_rows.py",
        "offload/reader/remote_table.h", "offload/transport/ofl.h", "staged.json",
    ]  # fmt: skip
    assert b"MODE = 'overlay'  # DSV41-OFFLOAD" in tree[OVERLAY]
    times = {path: path.stat().st_mtime_ns for path in tiny.staged("n0").rglob("*")}
    second = tiny.run(stage)
    assert (second.word, second.changed) == (Word.UNCHANGED, 0)
    assert times == {path: path.stat().st_mtime_ns for path in tiny.staged("n0").rglob("*")}


def test_only_what_differs_is_put_and_strays_go(tiny) -> None:
    tiny.run(stage)
    (tiny.staged("n1") / "offload/transport/ofl.h").write_text("somebody's edit")
    (tiny.staged("n1") / "offload/transport/stray.cpp").write_text("old")
    tiny.steps.clear()
    outcome = tiny.run(stage)
    changed = [(step.host, step.title) for step in outcome.steps if step.word is Word.CHANGED]
    assert changed == [("n1", "stage offload/transport/ofl.h"), ("n1", "remove stray offload/transport/stray.cpp")]
    assert _tree(tiny.staged("n0")) == _tree(tiny.staged("n1"))


def test_a_dry_run_shows_all_and_changes_nothing(tiny, state: Path) -> None:
    outcome = tiny.run(stage, dry_run=True)
    assert outcome.word is Word.WOULD
    assert not tiny.staged("n0").exists()
    assert not state.exists()
    overlay = next(step for step in outcome.steps if step.title == f"stage {OVERLAY}")
    assert "+MODE = 'overlay'  # DSV41-OFFLOAD" in overlay.detail


def test_offline_names_what_it_cannot_know(tiny) -> None:
    outcome = tiny.run(stage, offline=True)
    details = {step.title: step.detail for step in outcome.steps if step.host == "n0"}
    assert "would render from the image's file" in details[f"stage {OVERLAY}"]
    assert "edit set: tiny" in details[f"stage {OVERLAY}"]
    assert {step.word for step in outcome.steps} == {Word.WOULD}
    assert not (tiny.root / "hosts").exists()


GONE = HostError("disk full", host="n1")


@pytest.mark.parametrize(
    ("at", "error"), [*((at, GONE) for at in range(8)), (0, KeyboardInterrupt()), (5, KeyboardInterrupt())]
)
def test_a_failure_at_any_step_leaves_nothing_behind(tiny, failing, state: Path, at: int, error: BaseException) -> None:
    with pytest.raises(type(error)):
        tiny.run(stage, hosts=failing("n1", at, error))
    assert _tree(tiny.staged("n0")) == {}
    assert _tree(tiny.staged("n1")) == {}
    journal = list_journals()[-1]
    assert journal.verdict == ("interrupted" if isinstance(error, KeyboardInterrupt) else "failed: n1: disk full")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_failure_over_an_older_tree_puts_the_older_tree_back(tiny, failing, at: int) -> None:
    tiny.run(stage)
    for name in ("n0", "n1"):
        (tiny.staged(name) / "offload/transport/ofl.h").write_text("old 1")
        (tiny.staged(name) / "offload/transport/stray.h").write_text("old 2")
        (tiny.staged(name) / STAGED).write_text("old 3")
    before = {name: _tree(tiny.staged(name)) for name in ("n0", "n1")}
    hosts = failing("n1", at, HostError("gone", host="n1"))
    with pytest.raises(HostError, match="gone"):
        tiny.run(stage, hosts=hosts)
    assert {name: _tree(tiny.staged(name)) for name in ("n0", "n1")} == before


def test_undo_goes_backwards(tiny, failing, state: Path) -> None:
    with pytest.raises(HostError):
        tiny.run(stage, hosts=failing("n1", 5, HostError("gone", host="n1")))
    records = read_journal(list_journals()[-1].path)
    for name in ("n0", "n1"):
        done = [
            row["title"]
            for row in records
            if row["record"] == "step" and row["host"] == name and row["word"] == "changed"
        ]
        begun = done + [
            row["title"] for row in records if row["record"] == "step" and row["host"] == name and row["error"]
        ]
        undone = [row["title"] for row in records if row["record"] == "undo" and row["host"] == name]
        assert undone == [f"undo {title}" for title in reversed(begun)]


def test_what_cannot_be_undone_is_a_mixed_state(tiny, failing) -> None:
    hosts = failing("n1", 3, HostError("gone", host="n1"))
    real_remove = hosts["n1"]._host.remove_file

    def remove(path: str) -> None:
        if path.endswith("ofl.h"):
            raise HostError("still gone", host="n1")
        real_remove(path)

    hosts["n1"].remove_file = remove
    with pytest.raises(MixedState, match=r"could not be undone: n1: stage offload/transport/ofl\.h"):
        tiny.run(stage, hosts=hosts)


def test_an_image_that_the_edit_set_does_not_know(tiny) -> None:
    (tiny.root / "image/tiny/engram.py").write_text("MODE = 'image'  # another build\n")
    with pytest.raises(CheckFailed, match="sha256"):
        tiny.run(stage)
    assert not tiny.staged("n0").exists()


def test_the_named_sha256_may_be_shortened(tiny) -> None:
    import hashlib

    digest = hashlib.sha256((tiny.root / "image/tiny/engram.py").read_bytes()).hexdigest()
    tiny.changed("image", engram_sha256=f"{digest[:8]}…{digest[-4:]}")
    assert tiny.run(stage).word is Word.CHANGED
    tiny.changed("image", engram_sha256="bf95ad9a…05e5")
    with pytest.raises(CheckFailed, match="the cluster file names bf95ad9a…05e5"):
        tiny.run(stage)


def test_different_images_on_the_nodes(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_session(tiny.cluster, "stage") as session:
        monkeypatch.setattr(session.runtime, "image_file", lambda host: host.name.encode())
        with pytest.raises(MixedState, match="nodes have different images"):
            stage(session)


def test_without_edit_set_or_manifest(tiny) -> None:
    tiny.changed("image", edit_set=None)
    with pytest.raises(ConfigError, match=r"no image\.edit_set.*overlay derive"):
        tiny.run(stage)
    tiny.changed("image", edit_set="tiny")
    tiny.changed("tables", manifest=None)
    with pytest.raises(ConfigError, match=r"no tables\.manifest"):
        tiny.run(stage)


def test_staged_json_is_what_was_staged(tiny) -> None:
    tiny.run(stage)
    staged = Staged.parse((tiny.staged("n0") / STAGED).read_bytes())
    assert staged.edit_set == "tiny"
    assert set(staged.files) == set(_tree(tiny.staged("n0"))) - {STAGED}


def test_purge_removes_and_then_finds_nothing(tiny) -> None:
    tiny.run(stage)
    assert tiny.run(stage, purge=True).changed == 2
    assert not tiny.staged("n0").exists()
    assert tiny.run(stage, purge=True).word is Word.UNCHANGED


def test_journal_and_audit_lines(tiny, state: Path) -> None:
    tiny.run(stage)
    tiny.run(stage)
    first, second = list_journals()
    assert (first.verb, first.cluster, first.verdict, second.verdict) == ("stage", "tiny", "done", "done")
    records = read_journal(first.path)
    assert [row["record"] for row in records] == ["run", *["step"] * (len(records) - 2), "end"]
    puts = [row for row in records if row.get("title") == "stage manifest.json"]
    assert {row["host"] for row in puts} == {"n0", "n1"}
    assert all(row["word"] == "changed" and row["seconds"] >= 0 and "put 13 bytes" in row["command"] for row in puts)
    assert {row["word"] for row in read_journal(second.path) if row["record"] == "step"} == {"unchanged"}
    for name in ("n0", "n1"):
        audit = (tiny.home(name) / ".cache/dsv41-serve/dsv41ctl-audit.log").read_text().splitlines()
        # The second run changed nothing, and says nothing.
        assert len(audit) == 1
        assert "stage: 8 changed, done" in audit[0]
    json.dumps(records)


def test_a_cut_journal_can_be_read(tiny, state: Path) -> None:
    tiny.run(stage)
    path = list_journals()[0].path
    path.write_text(path.read_text()[:-30])
    assert list_journals()[0].verdict is None


def test_a_state_directory_that_cannot_be_written(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    monkeypatch.setenv("DSV41_STATE_DIR", str(blocked))
    with pytest.raises(Dsv41Error, match="cannot write the journal"):
        tiny.run(stage)
    assert not tiny.staged("n0").exists()
