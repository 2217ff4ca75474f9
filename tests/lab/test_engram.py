"""The image's engram module: ids, the disk table, and a rank's share of the embedding."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_engine import engram
from lab_engine.shards import find_plane, read_config

from dsv41ctl.engram.layout import read_geometry

LAYERS = (1, 14)


@pytest.fixture(scope="module")
def geometry(model: Path) -> engram.EngramGeometry:
    return engram.EngramGeometry.from_config(read_config(model))


@pytest.fixture(scope="module")
def planes(model: Path) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Both planes of each layer, read in one piece."""
    found = {}
    for layer in LAYERS:
        weight = find_plane(model, f"layers.{layer}.engram.embed.weight")
        scale = find_plane(model, f"layers.{layer}.engram.embed.scale")
        found[layer] = tuple(
            np.fromfile(plane.path, np.uint8, plane.bytes, offset=plane.offset).reshape(plane.shape)
            for plane in (weight, scale)
        )
    return found


@pytest.fixture
def table(model: Path, geometry: engram.EngramGeometry):
    table = engram.EngramDiskTable(layer=1, row_start=1000, row_end=20000, model_dir=model, max_rows=4096)
    yield table
    table.close()


def test_head_sizes_are_the_operators(model: Path, geometry: engram.EngramGeometry) -> None:
    ours = read_geometry(model)
    for layer in LAYERS:
        assert geometry.heads_of_layer(layer) == tuple(ours.head_sizes(layer))


def test_a_table_of_other_size_is_refused(model: Path) -> None:
    config = read_config(model)
    config["engram_num_embeddings"] = [1, *config["engram_num_embeddings"][1:]]
    with pytest.raises(RuntimeError, match=r"layer 1: config\.json says 1 rows"):
        engram.EngramGeometry.from_config(config)


tokens = st.lists(st.integers(0, 271), min_size=1, max_size=60)


@settings(max_examples=40, deadline=None)
@given(tokens=tokens, cuts=st.lists(st.integers(0, 60), max_size=6))
def test_ids_do_not_depend_on_chunks(geometry: engram.EngramGeometry, tokens: list[int], cuts: list[int]) -> None:
    hashing = engram.NgramHash(geometry)
    array = np.array(tokens)
    whole = hashing.ids(array, array[:0])
    edges = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    parts = [hashing.ids(array[a:b], array[max(0, a - 3) : a]) for a, b in itertools.pairwise(edges)]
    assert np.array_equal(whole, np.concatenate(parts))


@settings(max_examples=40, deadline=None)
@given(tokens=tokens)
def test_ids_lie_in_their_heads_and_follow_the_definition(geometry: engram.EngramGeometry, tokens: list[int]) -> None:
    ids = engram.NgramHash(geometry).ids(np.array(tokens), np.array([], dtype=np.int64))
    bound = (np.iinfo(np.int64).max // geometry.compressed_vocab_size) // 2
    for index, layer in enumerate(geometry.layer_ids):
        multipliers = [int(x) * 2 + 1 for x in np.random.default_rng(10007 * layer).integers(0, bound, 4)]
        sizes = geometry.heads_of_layer(layer)
        for position in range(len(tokens)):
            shifted = [tokens[position - s] if position >= s else geometry.pad_token_id for s in range(4)]
            for column, size in enumerate(sizes):
                mixed = 0
                for shift in range(column // 8 + 2):
                    mixed ^= shifted[shift] * multipliers[shift]
                assert ids[position, index, column] == mixed % size + sum(sizes[:column])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_are_the_shards_bytes(table, planes, dtype: torch.dtype) -> None:
    weight, scale = planes[1]
    random = np.random.default_rng(3)
    ids = np.concatenate((random.integers(1000, 20000, 3000), [1000, 19999, 5000, 5000, -1, -1]))
    table.enqueue_read(torch.from_numpy(ids).to(dtype))
    table.wait()
    dead = ids < 0
    for staging, plane in ((table.staging_weight, weight), (table.staging_scale, scale)):
        got = staging.numpy()[: len(ids)]
        assert np.array_equal(got[~dead], plane[ids[~dead]])
        assert not got[dead].any()
    again = table.read_rows(torch.from_numpy(ids[:50]))
    assert np.array_equal(again[0].numpy(), weight[ids[:50]])
    assert np.array_equal(again[1].numpy(), scale[ids[:50]])
    stats = table.stats()
    assert (stats["disk_lookups"], stats["rows"]) == (2, len(ids) + 50)
    assert 0 < stats["p50_us"] <= stats["max_us"]


@pytest.mark.parametrize("bad", [999, 20000, -2, 10**9])
def test_foreign_ids_are_refused_before_any_read(table, bad: int) -> None:
    with pytest.raises(IndexError, match=rf"row id {bad} is outside \[1000, 20000\)"):
        table.enqueue_read(torch.tensor([1000, bad]))
    assert table.stats()["disk_lookups"] == 0
    table.enqueue_read(torch.tensor([1000]))
    table.wait()


def test_misuse_is_refused(table) -> None:
    with pytest.raises(ValueError, match="4097 rows asked for, staging holds 4096"):
        table.enqueue_read(torch.full((4097,), 1000))
    with pytest.raises(RuntimeError, match="without a read in flight"):
        table.wait()
    table.enqueue_read(torch.tensor([1000]))
    with pytest.raises(RuntimeError, match="a read is in flight"):
        table.enqueue_read(torch.tensor([1000]))
    table.wait()
    table.close()
    table.close()
    with pytest.raises(RuntimeError, match="closed"):
        table.read_rows(torch.tensor([1000]))


def test_a_truncated_shard_is_refused(model: Path, tmp_path: Path) -> None:
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    shard = tmp_path / "model-00002-of-00003.safetensors"
    with shard.open("r+b") as file:
        file.truncate(1_000_000)
    with pytest.raises(RuntimeError, match="ends before tensor"):
        engram.EngramDiskTable(layer=1, row_start=0, row_end=100, model_dir=tmp_path, max_rows=8)


def test_dequantize_is_fp8_times_the_scales() -> None:
    weight = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scale = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 8).contiguous()
    factor = torch.exp2(scale.to(torch.float64) - 127)
    # Byte 0 stands for zero and byte 255 for no number, as in the serve's own kernel.
    factor[scale == 0] = 0
    expected = weight.view(torch.float8_e4m3fn).to(torch.float64).view(256, 8, 32) * factor[:, :, None]
    expected = expected.to(torch.float32).to(torch.bfloat16).view(256, 256)
    got = engram.dequantize(weight, scale)
    usable = slice(0, 255)
    assert torch.equal(got[usable].nan_to_num(1.5), expected[usable].nan_to_num(1.5))


@pytest.mark.parametrize("tp", [1, 2, 5, 24])
def test_ranks_together_give_every_head(model: Path, geometry: engram.EngramGeometry, planes, tp: int) -> None:
    text = np.frombuffer(b"which rank has which head", dtype=np.uint8).astype(np.int64)
    ids = torch.from_numpy(engram.NgramHash(geometry).ids(text, text[:0]))
    ids[3, :, 5] = -1
    for index, layer in enumerate(LAYERS):
        shares = [engram.ParallelEngramEmbedding(layer, geometry, rank, tp, model, 32, 1) for rank in range(tp)]
        assert [share.row_start for share in shares][1:] == [share.row_end for share in shares][:-1]
        rows = torch.cat([share.lookup(ids[:, index]) for share in shares], dim=1)
        flat = ids[:, index].reshape(-1).numpy()
        weight, scale = (torch.from_numpy(plane[flat]) for plane in planes[layer])
        expected = engram.dequantize(weight, scale).view(len(text), 24, 256).clone()
        expected[3, 5] = 0
        assert torch.equal(rows, expected)
        assert all(share.counters() == {"disk": 1, "remote": 0, "fallback": 0} for share in shares)
        for share in shares:
            share.close()


@pytest.mark.parametrize("tp", [7, 25])
def test_a_rank_without_heads_is_refused(model: Path, geometry: engram.EngramGeometry, tp: int) -> None:
    with pytest.raises(RuntimeError, match="leaves ranks without hash heads"):
        engram.ParallelEngramEmbedding(1, geometry, 0, tp, model, 8, 1)
