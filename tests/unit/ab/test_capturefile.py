import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41ctl.ab.capturefile import CaptureFileError, Writer, read_capture
from dsv41ctl.errors import UsageError, exit_code

from .make import capture, record

Spoil = Callable[[list[bytes]], list[bytes]]


def lines(tmp_path: Path, count: int = 3) -> list[bytes]:
    """A whole capture, as lines."""
    records = [record(index) for index in range(count)]
    out = tmp_path / "made.jsonl"
    out.unlink(missing_ok=True)
    with Writer(out, capture("A1", *records).header) as writer:
        for one in records:
            writer.add(one)
        writer.finish(count, 0, 1.0)
    return out.read_bytes().splitlines(keepends=True)


def sealed(found: list[bytes]) -> list[bytes]:
    """The same with a footer that fits what stands before it."""
    footer = json.loads(found[-1])
    footer["sha256"] = hashlib.sha256(b"".join(found[:-1])).hexdigest()
    return [*found[:-1], json.dumps(footer, separators=(",", ":")).encode() + b"\n"]


def swapped(found: list[bytes]) -> list[bytes]:
    return sealed([found[0], found[2], found[1], *found[3:]])


def schema(found: list[bytes]) -> list[bytes]:
    return sealed([found[0].replace(b'"schema":1', b'"schema":9').replace(b'"label"', b'"name"'), *found[1:]])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (swapped, "records out of order"),
        (schema, "schema 9; this version reads schema 1"),
        (lambda found: found[:-1], "no footer after 3 prompts: an incomplete run"),
        (lambda found: sealed([*found[:2], *found[3:]]), "record 1 is of prompt 2"),
        (lambda found: sealed([*found[:3], *found[4:]]), "2 prompt records, 3 in the footer, 3 in the header"),
        (lambda found: [found[0], found[1].replace(b"-1.25", b"-1.26", 1), *found[2:]], "sha256 of its records"),
        (lambda found: [*found, found[1]], "line 6: more after the footer"),
        (lambda found: [*found[:-1], found[-1][:20]], "cut off within a line"),
        (lambda found: found[1:], "its first line is no header"),
        (lambda found: sealed([found[0], found[1].replace(b'"index"', b'"jndex"'), *found[2:]]), "line 2: "),
        (lambda found: [b"hello\n"], "its first line is no header"),
        (lambda found: [], "empty"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_file_is_one_line_that_names_it_and_what_to_do(
    tmp_path: Path, spoil: Spoil, words: str, packed: bool
) -> None:
    data = b"".join(spoil(lines(tmp_path)))
    path = tmp_path / "x.jsonl"
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(CaptureFileError, match=words) as caught:
        read_capture(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert text.endswith(f"(next: dsv41ctl ab run --out {path} ... makes it again)")
    assert "\n" not in text
    assert exit_code(caught.value) == 5


def test_records_of_other_prompts_are_refused(tmp_path: Path) -> None:
    found = lines(tmp_path)
    body = json.loads(found[1])
    body["sha256"] = "0" * 64
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"".join(sealed([found[0], json.dumps(body).encode() + b"\n", *found[2:]])))
    with pytest.raises(CaptureFileError, match="record 0 is not of the prompt"):
        read_capture(path)


@given(cut=st.floats(0.01, 0.999), flip=st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_damage_to_gzip_goes_unseen(tmp_path_factory: pytest.TempPathFactory, cut: float, flip: bool) -> None:
    tmp_path = tmp_path_factory.mktemp("gz")
    whole = gzip.compress(b"".join(lines(tmp_path)), mtime=0)
    place = int(len(whole) * cut)
    data = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :] if flip else whole[:place]
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(data)
    try:
        read = read_capture(path)
    except CaptureFileError:
        return
    # Only gzip's own header fields may change without harm to what is inside.
    assert flip
    assert place < 10
    assert len(read.prompts) == 3


def test_a_round_trip_keeps_every_bit(tmp_path: Path) -> None:
    records = [record(index, delta=lambda place: place / 3) for index in range(2)]
    out = tmp_path / "a.jsonl.gz"
    with Writer(out, capture("A1", *records).header) as writer:
        for one in records:
            writer.add(one)
        writer.finish(2, 0, 1.0)
    assert list(read_capture(out).prompts) == records


def test_a_missing_file_is_the_users_to_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_capture(tmp_path / "none.jsonl")
