"""What every host must do, on this machine and over a real sshd."""

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv41ctl.errors import CommandFailed, CommandTimeout, HostError
from dsv41ctl.hosts import Host, LocalHost, Secret

SENTINEL = "s3ntinel-value"


@pytest.fixture(params=["local", "ssh"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    if request.param == "local":
        yield LocalHost("near", str(tmp_path / "home"))
    else:
        yield request.getfixturevalue("far")


def test_status_and_both_streams(host: Host) -> None:
    done = host.run(("sh", "-c", "echo out; echo err >&2; exit 7"), timeout=10, check=False)
    assert (done.status, done.stdout, done.stderr, done.raw) == (7, "out\n", "err\n", b"out\n")


def test_quoting_survives_the_way(host: Host) -> None:
    words = ["a b", "it's", '"$HOME"', "back\\slash", "semi;colon", "new\nline", "", "*", "ü€"]
    done = host.run(("printf", "%s\\0", *words), timeout=10)
    assert done.stdout.split("\0")[:-1] == words


def test_megabytes_on_both_streams_do_not_block(host: Host) -> None:
    script = "head -c 6000000 /dev/zero & head -c 6000000 /dev/zero >&2; wait"
    done = host.run(("sh", "-c", script), timeout=60)
    assert (len(done.raw), len(done.stderr)) == (6_000_000, 6_000_000)


def test_megabytes_of_input(host: Host) -> None:
    data = os.urandom(5_000_000)
    assert host.run(("cat",), timeout=60, stdin=data).raw == data


def test_input_that_nobody_reads(host: Host) -> None:
    assert host.run(("true",), timeout=30, stdin=b"x" * 1_000_000).status == 0


def test_environment_is_clean_but_for_what_is_given(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKED", "1")
    text = host.run(("env",), timeout=10, env={"GIVEN": "a b"}).stdout
    assert "GIVEN=a b" in text
    assert "LEAKED" not in text


def test_commands_run_in_the_home(host: Host) -> None:
    assert host.run(("pwd",), timeout=10).stdout.strip() == str(Path(host.home).resolve())


def test_the_limit_ends_the_command_and_its_children(host: Host, tmp_path: Path) -> None:
    marker = tmp_path / "alive"
    script = f"(while :; do touch {marker}; sleep 0.1; done) & sleep 60"
    begun = time.monotonic()
    with pytest.raises(CommandTimeout, match=r"did not end within 1 s"):
        host.run(("sh", "-c", script), timeout=1)
    assert time.monotonic() - begun < 8
    time.sleep(0.3)
    marker.unlink(missing_ok=True)
    time.sleep(0.4)
    assert not marker.exists()


def test_a_child_left_behind_does_not_hold_the_answer(host: Host) -> None:
    begun = time.monotonic()
    done = host.run(("sh", "-c", "sleep 3 & echo done"), timeout=20)
    assert done.stdout == "done\n"
    assert time.monotonic() - begun < 2.5


def test_lines_come_as_they_are_written(host: Host) -> None:
    seen: list[tuple[float, str]] = []
    script = "echo first; sleep 0.8; echo second >&2; printf third"
    host.run(("sh", "-c", script), timeout=10, on_line=lambda text: seen.append((time.monotonic(), text)))
    assert sorted(text for _, text in seen) == ["first", "second", "third"]
    assert seen[1][0] - seen[0][0] > 0.4


def test_a_failed_command_says_which(host: Host) -> None:
    with pytest.raises(CommandFailed) as caught:
        host.run(("sh", "-c", "echo the reason >&2; exit 3", Secret(SENTINEL)), timeout=10)
    assert caught.value.status == 3
    assert "the reason" in str(caught.value)
    assert caught.value.host == host.name
    assert SENTINEL not in str(caught.value) + repr(caught.value) + repr(caught.value.__dict__)


def test_no_such_command(host: Host) -> None:
    with pytest.raises(HostError, match="command not found"):
        host.run(("no-such-command-here",), timeout=10)


def test_disk_full_has_its_own_words(host: Host) -> None:
    with pytest.raises(HostError, match="disk full") as caught:
        host.run(("cp", "/proc/self/status", "/dev/full"), timeout=10)
    assert "df -h" in str(caught.value.hint)


@pytest.mark.parametrize("data", [b"", b"text\n", bytes(range(256)) * 20_000])
def test_put_and_get(host: Host, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a dir" / "x'y.bin"
    host.put(data, str(path), 0o640)
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o640
    assert host.get(str(path)) == data
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_put_takes_the_home(host: Host, tmp_path: Path) -> None:
    name = f".dsv41ctl-test-{tmp_path.name}"
    try:
        host.put(b"x", f"~/{name}")
        assert host.exists(f"{host.home}/{name}")
    finally:
        host.remove_file(f"~/{name}")
    assert not host.exists(f"~/{name}")


def test_a_put_that_fails_leaves_the_old_file(host: Host, tmp_path: Path) -> None:
    directory = tmp_path / "there"
    directory.mkdir()
    with pytest.raises(HostError, match="write"):
        host.put(b"new", str(directory))
    blocked = tmp_path / "file"
    blocked.write_text("old")
    with pytest.raises(HostError):
        host.put(b"new", str(blocked / "below"))
    assert blocked.read_text() == "old"
    assert not list(directory.iterdir())


def test_get_of_what_is_not_there(host: Host, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="No such file"):
        host.get(str(tmp_path / "missing"))


def test_sha256_tree(host: Host, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    assert host.sha256_tree(str(root)) == {}
    (root / "a b").mkdir(parents=True)
    (root / "a b" / "new\nline").write_bytes(b"1")
    (root / "back\\slash").write_bytes(b"")
    (root / "link").symlink_to("nowhere")
    assert host.sha256_tree(str(root)) == {
        "a b/new\nline": hashlib.sha256(b"1").hexdigest(),
        "back\\slash": hashlib.sha256(b"").hexdigest(),
        "link": "special",
    }


@pytest.mark.parametrize(
    "path", ["", "/", "~", "~/", ".", "/etc", "{under}", "{under}/../other", "{under}x", "relative"]
)
def test_remove_tree_refuses(host: Host, tmp_path: Path, path: str) -> None:
    under = tmp_path / "cache"
    under.mkdir()
    (tmp_path / "other").mkdir()
    with pytest.raises(HostError, match="refuses to remove"):
        host.remove_tree(path.format(under=under), under=str(under))
    assert (tmp_path / "other").is_dir()


def test_remove_tree_does_not_follow_links_out(host: Host, tmp_path: Path) -> None:
    under, outside = tmp_path / "cache", tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    under.mkdir()
    (under / "link").symlink_to(outside)
    with pytest.raises(HostError, match="outside"):
        host.remove_tree(f"{under}/link/kept", under=str(under))
    assert (outside / "kept").is_dir()
    host.remove_tree(f"{under}/link", under=str(under))
    assert not (under / "link").is_symlink()
    assert (outside / "kept").is_dir()


def test_remove_tree(host: Host, tmp_path: Path) -> None:
    under = tmp_path / "cache"
    (under / "tree" / "deep").mkdir(parents=True)
    for _ in range(2):
        host.remove_tree(f"{under}/tree", under=str(under))
        assert not (under / "tree").exists()
    with pytest.raises(HostError, match="refuses"):
        host.remove_tree(str(under / "tree"), under="/")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=2000))
def test_any_bytes_arrive_as_they_are(data: bytes, tmp_path: Path) -> None:
    near = LocalHost("near", str(tmp_path / "home"))
    near.put(data, "~/file")
    assert near.get("~/file") == data
