"""The scripts that run on a node: ident, and what verify_rows is made of."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from engram_files import edit_json
from engram_mini_server import MiniServer
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41ctl.engram.layout import EngramGeometry
from dsv41ctl.engram.manifest import Manifest, save_manifest
from dsv41ctl.engram.pack import packed_manifest
from overlays.tools import corner_cases, refusals

Tool = Callable[..., CompletedProcess[str]]


@pytest.fixture
def server(manifest: Manifest, checkpoint: Path) -> Iterator[MiniServer]:
    with MiniServer(manifest, checkpoint) as running:
        yield running


def target(server: MiniServer, layer: int = 14, rank: int = 1, tp: int = 2, key: bytes = b"") -> refusals.Target:
    shard = server.manifest.geometry.shard(layer, rank, tp)
    table = server.manifest.table(layer)
    server_row, server.corrupt = server.corrupt, set()
    row = server.rows(table, [shard.start])
    server.corrupt = server_row
    return refusals.Target(
        server.url, layer, shard.start, shard.end, table.rows, bytes.fromhex(table.identity), row, key
    )


def test_ident_agrees_with_the_manifest(checkpoint: Path, manifest: Manifest, run_tool: Tool) -> None:
    done = run_tool("ident.py", "--root", checkpoint, "--model-dir", checkpoint, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] is True
    assert {one["layer"]: one["identity"] for one in report["layers"]} == manifest.identities
    plane = report["layers"][0]["planes"]["weight"]
    said = manifest.table(1).weight
    assert (plane["offset"], plane["bytes"], plane["dtype"]) == (said.offset, said.bytes, "F8_E4M3")
    assert plane["file_size"] == (checkpoint / said.file).stat().st_size
    text = run_tool("ident.py", "--root", checkpoint, "--model-dir", checkpoint, "--layer", 14).stdout
    assert text == f"layer=14 rows={manifest.table(14).rows} identity={manifest.identities[14]} ok\n"


def test_ident_with_a_packed_manifest(checkpoint: Path, manifest: Manifest, run_tool: Tool) -> None:
    save_manifest(packed_manifest(manifest), checkpoint / "manifest.json")
    done = run_tool("ident.py", "--root", checkpoint, "--model-dir", checkpoint)
    assert done.returncode == 0, done.stdout


def test_ident_tells_what_differs(checkpoint: Path, run_tool: Tool) -> None:
    path = checkpoint / "manifest.json"
    edit_json(path, lambda data: data["layers"][0].update(identity="0" * 64))
    edit_json(path, lambda data: data["layers"][0]["scale"].update(digest="1" * 64))
    edit_json(path, lambda data: data["layers"][1]["weight"].update(offset=8))
    done = run_tool("ident.py", "--root", checkpoint, "--model-dir", checkpoint, "--json")
    assert done.returncode == 3
    one, other = (layer["problems"] for layer in json.loads(done.stdout)["layers"])
    assert [line.split(":")[0] for line in one] == ["scale", "identity"]
    assert other[0].startswith("weight.offset: the shard says ")
    assert "differs" in run_tool("ident.py", "--root", checkpoint, "--model-dir", checkpoint).stdout


@pytest.mark.parametrize(
    "missing", ["manifest.json", "model.safetensors.index.json", "model-00003-of-00003.safetensors"]
)
def test_ident_without_a_file_is_trouble(checkpoint: Path, run_tool: Tool, missing: str) -> None:
    (checkpoint / missing).unlink()
    done = run_tool("ident.py", "--root", checkpoint, "--model-dir", checkpoint)
    assert done.returncode == 1
    assert missing in done.stderr
    assert "Traceback" not in done.stderr


def test_ident_with_a_cut_shard(checkpoint: Path, run_tool: Tool) -> None:
    shard = checkpoint / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-2000])
    done = run_tool("ident.py", "--root", checkpoint, "--model-dir", checkpoint)
    assert done.returncode == 3
    assert "has" in done.stdout
    shard.write_bytes(b"\xff" * 20)
    assert run_tool("ident.py", "--root", checkpoint, "--model-dir", checkpoint).returncode == 1


def test_all_twelve_refusals(server: MiniServer) -> None:
    for layer, rank in ((1, 0), (1, 1), (14, 1)):
        found = refusals.try_refusals(target(server, layer, rank))
        assert (found["tried"], found["right"]) == (12, 12), found["details"]
    assert sorted(one["expected"] for one in found["details"]) == sorted(
        [-101, -102, -103, -103, -104, -105, -109, -110, -111, -111, -112, -113]
    )


def test_refusals_with_a_key(manifest: Manifest, checkpoint: Path) -> None:
    with MiniServer(manifest, checkpoint, key=b"secret\n") as server:
        assert refusals.try_refusals(target(server, key=b"secret\n"))["right"] == 12
        with pytest.raises(refusals.Unavailable, match="wants a key"):
            refusals.try_refusals(target(server))
        with pytest.raises(refusals.Contradiction, match="-106"):
            refusals.try_refusals(target(server, key=b"secret"))
        server.foreign_key = True
        with pytest.raises(refusals.Unavailable, match="does not know the key"):
            refusals.try_refusals(target(server, key=b"secret\n"))


@pytest.mark.parametrize("code", [-101, -102, -103, -104, -105, -109, -110, -111, -112, -113])
def test_a_wrong_code_is_noticed(server: MiniServer, code: int) -> None:
    server.wrong_code[code] = -199
    found = refusals.try_refusals(target(server))
    wrong = [one for one in found["details"] if not one["right"]]
    assert {one["expected"] for one in wrong} == {code}
    assert {one["got"] for one in wrong} == {-199}


def test_silence_and_death_are_noticed(server: MiniServer) -> None:
    server.silent = {-112}
    found = refusals.try_refusals(target(server))
    assert [one["expected"] for one in found["details"] if not one["right"]] == [-112]
    server.silent, server.die_after = set(), -110
    with pytest.raises(refusals.Unavailable):
        refusals.try_refusals(target(server))


def test_a_server_that_is_not_ready_or_serves_another_row_is_no_pass(server: MiniServer) -> None:
    server.ready = False
    with pytest.raises(refusals.Unavailable, match="-107"):
        refusals.try_refusals(target(server))
    server.ready = True
    server.corrupt = {target(server).start}
    with pytest.raises(refusals.Contradiction, match="a wrong row"):
        refusals.try_refusals(target(server))


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("tcp://127.0.0.1:18610", ("127.0.0.1", 18610, "")),
        ("rdma://10.202.28.1:18610@10.202.28.2", ("10.202.28.1", 18610, "10.202.28.2")),
        ("tcp://[fd00::1]:1@[fd00::2]", ("fd00::1", 1, "fd00::2")),
    ],
)
def test_urls(url: str, parts: tuple[str, int, str]) -> None:
    assert refusals.parse_url(url) == parts


@pytest.mark.parametrize("url", ["http://a:1", "tcp://a", "tcp://a:0", "tcp://a:70000", "tcp://:1", "tcp://a:1@", ""])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match="is not tcp://HOST:PORT"):
        refusals.parse_url(url)


@settings(max_examples=60, deadline=None)
@given(vocab=st.integers(2, 3000), tp=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]), data=st.data())
def test_corner_cases_stay_in_the_range_and_touch_every_border(vocab: int, tp: int, data: st.DataObject) -> None:
    geometry = EngramGeometry.make(vocab_size=vocab)
    sizes = list(geometry.head_sizes(14))
    rank = data.draw(st.integers(0, tp - 1))
    max_rows = data.draw(st.sampled_from([1, 7, 288, 5000]))
    start, end, heads = corner_cases.head_range(sizes, rank, tp)
    shard = geometry.shard(14, rank, tp)
    assert (start, end, len(heads)) == (shard.start, shard.end, shard.head_end - shard.head_start)
    where = corner_cases.Range(start, end, heads, ((1003, 256), (1003 + 256 * geometry.rows(14), 8)))
    cases = list(corner_cases.corner_cases(where, max_rows, 1))
    assert all(0 < len(ids) <= max_rows for _, ids in cases)
    touched = {row for _, ids in cases for row in ids}
    assert all(row == -1 or start <= row < end for row in touched)
    assert {start, end - 1, -1} | {row for head in heads for row in head} <= touched
    assert {len(ids) for _, ids in cases} >= {
        size for size in (1, 2, 12, 24, 144, 288, 4096, max_rows) if size <= max_rows
    }


def test_rows_across_pages_are_across_pages() -> None:
    where = corner_cases.Range(0, 100_000, ((0, 99_999),), ())
    for offset, width in ((1003, 256), (77, 8)):
        rows = corner_cases.straddling(where, offset, width)
        across = [row for row in rows if (offset + row * width) // 4096 != (offset + row * width + width - 1) // 4096]
        assert len(across) >= 30
        assert min(rows) < 2000
        assert max(rows) > 90_000


@settings(max_examples=50, deadline=None)
@given(size=st.integers(1, 3000), count=st.integers(0, 4000), batch=st.integers(1, 500), seed=st.integers(0, 9))
def test_a_sample_is_distinct_and_of_the_wanted_size(size: int, count: int, batch: int, seed: int) -> None:
    where = corner_cases.Range(50, 50 + size, (), ())
    batches = list(corner_cases.sample(where, count, seed, batch))
    rows = [row for ids in batches for row in ids]
    assert len(rows) == len(set(rows)) == min(size, count)
    assert all(50 <= row < 50 + size for row in rows)
    assert all(0 < len(ids) <= batch for ids in batches)
    assert batches == list(corner_cases.sample(where, count, seed, batch))


def test_ranks_without_heads_are_refused() -> None:
    for rank, tp in ((2, 2), (-1, 2), (0, 0), (0, 7)):
        with pytest.raises(ValueError, match="owns none of 24 heads"):
            corner_cases.head_range([1] * 24, rank, tp)


def test_the_tools_import_nothing_of_ours() -> None:
    for path in Path(refusals.__file__).parent.glob("*.py"):
        imports = [line for line in path.read_text().splitlines() if "import" in line]
        assert not [line for line in imports if "dsv41ctl" in line]
