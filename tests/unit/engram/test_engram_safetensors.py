import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41ctl.engram.safetensors import INDEX, ShardError, layer_planes, locate, read_header, read_index, shard_path

WEIGHT, SCALE = "layers.1.engram.embed.weight", "layers.1.engram.embed.scale"
ROWS = 5


def shard(path: Path, header: dict[str, Any] | bytes, data: int = ROWS * 264) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(data))
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def good() -> dict[str, Any]:
    return {
        "__metadata__": {"format": "pt"},
        WEIGHT: entry("F8_E4M3", [ROWS, 256], 0, ROWS * 256),
        SCALE: entry("F8_E8M0", [ROWS, 8], ROWS * 256, ROWS * 264),
    }


def model(
    directory: Path, header: dict[str, Any] | bytes, data: int = ROWS * 264, names: tuple[str, ...] = (WEIGHT, SCALE)
) -> Path:
    shard(directory / "model-00001-of-00001.safetensors", header, data)
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (directory / INDEX).write_text(json.dumps(index))
    return directory


def test_planes_are_found_by_name_with_offsets_in_the_file(tmp_path: Path) -> None:
    model(tmp_path, good())
    weight, scale = layer_planes(tmp_path, 1, ROWS)
    start = 8 + len(json.dumps(good()))
    assert (weight.offset, weight.bytes, scale.offset, scale.bytes) == (start, 1280, start + 1280, 40)
    assert weight.file == "model-00001-of-00001.safetensors"
    assert read_header(weight.path).metadata == {"format": "pt"}


def changed(name: str, **fields: Any) -> dict[str, Any]:
    header = good()
    header[name] |= fields
    return header


def without(name: str) -> dict[str, Any]:
    header = good()
    del header[name]
    return header


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (changed(WEIGHT, dtype="F8_E5M2"), None, ["wrong dtype", WEIGHT, "expected F8_E4M3", "found F8_E5M2"]),
        (changed(SCALE, dtype="U8"), None, ["wrong dtype", SCALE, "expected F8_E8M0", "found U8"]),
        (changed(WEIGHT, shape=[10, 128]), None, ["wrong shape", WEIGHT, "expected [5, 256]", "found [10, 128]"]),
        (without(SCALE), None, ["tensor missing from the shard", SCALE]),
        (good(), 1319, ["truncated shard", SCALE, "expected at least", "found"]),
        (good(), 0, ["truncated shard", WEIGHT]),
        (
            changed(WEIGHT, data_offsets=[0, 1279]),
            None,
            ["shape and data_offsets disagree", "1280 bytes", "found 1279"],
        ),
        (changed(WEIGHT, data_offsets=[1280, 0]), None, ["data_offsets is not [begin, end]"]),
        (changed(WEIGHT, data_offsets=[-8, 1272]), None, ["data_offsets is not [begin, end]"]),
        (changed(WEIGHT, data_offsets=[0, True]), None, ["data_offsets is not [begin, end]"]),
        (changed(WEIGHT, data_offsets=[0, 2**70]), None, ["data_offsets is not [begin, end]"]),
        (changed(WEIGHT, shape="5x256"), None, ["shape is not a list of counts"]),
        (changed(WEIGHT, dtype=7), None, ["no dtype"]),
        ({WEIGHT: [1]}, None, ["not a JSON object", WEIGHT]),
        (b"[]", None, ["header is not a JSON object"]),
        (b"{", None, ["header is not JSON"]),
        (b"\xff\xfe{}", None, ["header is not JSON"]),
        (b"[" * 100_000, None, ["header is not JSON"]),
        (b'{"a":1,"a":2}', None, ["stands twice"]),
        (b'{"__metadata__":3}', None, ["__metadata__"]),
    ],
)
def test_each_malformed_shard_is_one_line_that_says_what_and_where(
    header: dict[str, Any] | bytes, data: int | None, words: list[str], tmp_path: Path
) -> None:
    model(tmp_path, header, ROWS * 264 if data is None else data)
    with pytest.raises(ShardError) as caught:
        layer_planes(tmp_path, 1, ROWS)
    text = str(caught.value)
    assert text.startswith(str(tmp_path / "model-00001-of-00001.safetensors"))
    assert all(word in text for word in words), text
    assert "\n" not in text
    assert "(next: " in text


def test_header_longer_than_the_format_allows(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    with pytest.raises(
        ShardError, match="header too long, expected at most 100000000 bytes, found 9223372036854775808"
    ):
        read_header(path)


def test_header_longer_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 500) + b"{}")
    with pytest.raises(ShardError, match="truncated shard, expected a header of 500 bytes, found 2"):
        read_header(path)


def test_an_empty_shard(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.touch()
    with pytest.raises(ShardError, match="truncated shard"):
        read_header(path)


def test_missing_shard_and_missing_index_and_missing_tensor(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"index missing .*next: pass --model-dir"):
        layer_planes(tmp_path, 1, ROWS)
    model(tmp_path, good(), names=(WEIGHT,))
    with pytest.raises(ShardError, match=f"{INDEX}: tensor missing from the index, tensor {SCALE}"):
        layer_planes(tmp_path, 1, ROWS)
    (tmp_path / "model-00001-of-00001.safetensors").unlink()
    with pytest.raises(ShardError, match="missing shard"):
        locate(tmp_path, WEIGHT)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_a_malformed_index(text: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ShardError, match="index"):
        read_index(tmp_path)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "..", ".", "", "a\0b"])
def test_a_shard_name_cannot_leave_the_directory(name: str, tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="plain file name"):
        shard_path(tmp_path, name)


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=200), prefix=st.one_of(st.none(), st.integers(0, 2**64 - 1)))
def test_any_bytes_are_a_header_or_a_shard_error(
    data: bytes, prefix: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(struct.pack("<Q", len(data) if prefix is None else prefix) + data)
    try:
        read_header(path)
    except ShardError as error:
        assert "\n" not in error.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    fields=st.fixed_dictionaries({}, optional={"dtype": json_values, "shape": json_values, "data_offsets": json_values})
)
def test_any_json_entry_is_a_tensor_within_the_file_or_a_shard_error(
    fields: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = shard(tmp_path_factory.getbasetemp() / "entry.safetensors", {"t": fields}, 64)
    try:
        header = read_header(path)
    except ShardError:
        return
    info = header.tensors["t"]
    assert header.data_start <= info.offset <= info.offset + info.bytes <= header.size
