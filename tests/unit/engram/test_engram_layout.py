import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41ctl.engram import layout
from dsv41ctl.engram.layout import EngramGeometry, is_prime, read_geometry
from dsv41ctl.errors import Dsv41Error, UsageError

REAL = EngramGeometry.make(vocab_size=16_000_000)
REAL_CONFIG = {
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "engram_vocab_size": 16000000,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 99092,
}


def test_the_real_checkpoint_has_these_numbers() -> None:
    assert REAL.num_embeddings == (384006168, 384016682)
    assert (REAL.head_sizes(1)[0], REAL.head_sizes(1)[-1]) == (16000057, 16000463)
    assert (REAL.head_sizes(14)[0], REAL.head_sizes(14)[-1]) == (16000477, 16000889)
    assert REAL.n_hash_cols == 24


@pytest.mark.parametrize(
    ("layer", "tp", "starts"),
    [
        (1, 1, [0]),
        (14, 1, [0]),
        (1, 2, [0, 192001740]),
        (14, 2, [0, 192007016]),
        (1, 3, [0, 128000880, 256002934]),
        (14, 3, [0, 128004290, 256009984]),
        (1, 4, [0, 96000564, 192001740, 288003654]),
        (14, 4, [0, 96003054, 192007016, 288011564]),
    ],
)
def test_ranges_split_at_head_borders(layer: int, tp: int, starts: list[int]) -> None:
    ranges = REAL.shards(layer, tp)
    assert [shard.start for shard in ranges] == starts
    assert [shard.end for shard in ranges] == [*starts[1:], REAL.rows(layer)]


def test_tp_8_gives_three_heads_a_rank() -> None:
    for layer in (1, 14):
        ranges = REAL.shards(layer, 8)
        assert [shard.head_end - shard.head_start for shard in ranges] == [3] * 8
        assert [shard.rows for shard in ranges] == [sum(REAL.head_sizes(layer)[at : at + 3]) for at in range(0, 24, 3)]


def test_a_fresh_layout_takes_well_under_100_ms() -> None:
    layout._head_sizes.cache_clear()
    began = time.perf_counter()
    EngramGeometry.make(vocab_size=16_000_000)
    assert time.perf_counter() - began < 0.1


def test_primes_are_handed_out_as_the_model_does_it() -> None:
    """The literal rule: restart at vocab_size - 1 for each (layer, order), skip what any layer has."""
    seen: set[int] = set()
    for layer in (1, 14):
        sizes = []
        for _ in range(3):
            current = 16000 - 1
            for _ in range(8):
                current += 1
                while not is_prime(current) or current in seen:
                    current += 1
                seen.add(current)
                sizes.append(current)
        assert EngramGeometry.make(vocab_size=16000).head_sizes(layer) == tuple(sizes)


def test_is_prime_against_a_sieve() -> None:
    composite = {multiple for base in range(2, 100) for multiple in range(base * base, 10_000, base)}
    assert [n for n in range(10_000) if is_prime(n)] == [n for n in range(2, 10_000) if n not in composite]


@pytest.mark.parametrize("number", [561, 3215031751, 3825123056546413051, 16000057 * 16000463])
def test_pseudoprimes_are_not_primes(number: int) -> None:
    assert not is_prime(number)


@settings(max_examples=60, deadline=None)
@given(
    vocab=st.integers(2, 50_000),
    layers=st.integers(1, 3),
    orders=st.integers(2, 4),
    heads=st.integers(1, 9),
    tp=st.integers(1, 30),
)
def test_ranges_partition_the_table(vocab: int, layers: int, orders: int, heads: int, tp: int) -> None:
    ids = tuple(range(layers))
    geometry = EngramGeometry.make(vocab_size=vocab, layer_ids=ids, max_ngram_size=orders, n_heads=heads)
    every = [size for layer in ids for size in geometry.head_sizes(layer)]
    assert len(set(every)) == len(every)
    assert all(is_prime(size) and size >= vocab for size in every)
    for layer in ids:
        try:
            ranges = geometry.shards(layer, tp)
        except UsageError as error:
            part = -(-geometry.n_hash_cols // tp)
            assert "leaves ranks without hash heads" in str(error)
            assert part * (tp - 1) >= geometry.n_hash_cols
            continue
        assert ranges[0].start == 0
        assert ranges[-1].end == geometry.rows(layer)
        assert all(left.end == right.start for left, right in pairwise(ranges))
        assert all(left.head_end == right.head_start for left, right in pairwise(ranges))
        assert all(shard.rows > 0 for shard in ranges)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), vocab=st.integers(2, 5000))
def test_every_id_is_in_one_head(data: st.DataObject, vocab: int) -> None:
    geometry = EngramGeometry.make(vocab_size=vocab)
    row = data.draw(st.integers(0, geometry.rows(14) - 1))
    head, offsets = geometry.head_of(14, row), geometry.head_offsets(14)
    assert offsets[head] <= row < offsets[head + 1]


def test_ids_and_ranks_outside_are_refused() -> None:
    with pytest.raises(UsageError, match="outside layer 1's table"):
        REAL.head_of(1, 384006168)
    with pytest.raises(UsageError, match="layer 2 has no Engram table; layers 1, 14 have one"):
        REAL.rows(2)
    with pytest.raises(UsageError, match="rank 2 of tp 2"):
        REAL.shard(1, 2, 2)
    with pytest.raises(UsageError, match="Engram sharding leaves ranks without hash heads"):
        REAL.shard(1, 0, 7)


@pytest.mark.parametrize("nested", [True, False])
def test_config_is_read_from_text_config_or_the_top(nested: bool, tmp_path: Path) -> None:
    config = {"text_config": REAL_CONFIG, "model_type": "x"} if nested else REAL_CONFIG
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_geometry(tmp_path) == REAL
    assert REAL.to_text_config() == REAL_CONFIG


def _without(key: str) -> dict[str, object]:
    return {name: value for name, value in REAL_CONFIG.items() if name != key}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (_without("engram_vocab_size"), "no engram_vocab_size"),
        (REAL_CONFIG | {"engram_num_embeddings": [384006168, 384016683]}, "layer 14: num_embeddings is 384016683"),
        (REAL_CONFIG | {"engram_num_embeddings": [384006168]}, "1 entries for 2 layers"),
        (REAL_CONFIG | {"engram_head_dim": 128}, "head_dim is 128"),
        (REAL_CONFIG | {"engram_layer_ids": [1, 1]}, "must be distinct"),
        (REAL_CONFIG | {"engram_n_heads": "eight"}, "engram_n_heads"),
    ],
)
def test_a_config_that_contradicts_itself_is_one_line(config: dict[str, object], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Dsv41Error) as caught:
        read_geometry(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"), [(None, "No such file"), ("{", "not JSON"), ("[]", "expected a JSON object")]
)
def test_an_unusable_config_names_the_file(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(Dsv41Error, match=message):
        read_geometry(tmp_path)
