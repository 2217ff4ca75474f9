"""Compares rows of a rank, byte by byte: through the real reader from the table server, and from the local shard.

Runs in the serving image on a node; needs Python and torch. The reader is dsv41_engram_remote, staged beside this file;
the local rows are read by this file alone. A row that the reader took from its fallback proves nothing: it does not
count.

Exit 0: every row and refusal right. 3: a row or a refusal wrong, or OPEN refused. 5: inconclusive. 1: trouble.
"""

import argparse
import importlib
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from overlays.tools import corner_cases, ident, refusals
else:
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import corner_cases
    import ident
    import refusals

OK, TROUBLE, USAGE, WRONG, INCONCLUSIVE = 0, 1, 2, 3, 5
FIRST_BAD = 16
# A slow answer is an answer here: what is asked is whether bytes are right, not how fast they come.
TIMEOUT_MS = 5000


class Reader(Protocol):
    """What is used of EngramRemoteTable."""

    def read_rows(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows [n, 256] and [n, 8]."""

    def stats(self) -> dict[str, Any]:
        """Counters."""

    def close(self) -> None:
        """Ends it."""


class Inconclusive(Exception):
    """Nothing is proven either way."""


class Wrong(Exception):
    """The two sides hold different tables."""


@dataclass
class LayerResult:
    """What is reported for one layer."""

    layer: int
    start: int = 0
    end: int = 0
    identity: str = ""
    rows_compared: int = 0
    sampled: int = 0
    bad: int = 0
    first_bad: list[int] = field(default_factory=list)
    corner_cases: int = 0
    fallbacks: int = 0
    not_counted: int = 0
    reason: str = ""


class LocalShard:
    """The planes on this node, read with pread in spans and in parallel, so that an NVMe is kept busy."""

    GAP, SPAN, THREADS = 32, 4096, 16

    def __init__(self, model_dir: Path, layer: ident.Layer) -> None:
        self._planes = []
        self._pool = ThreadPoolExecutor(self.THREADS)
        for name, (_, width) in ident.PLANES.items():
            plane = layer.planes[name]
            handle = os.open(model_dir / plane["file"], os.O_RDONLY | os.O_CLOEXEC)
            self._planes.append((handle, int(plane["offset"]), width))

    def close(self) -> None:
        """Closes the shard."""
        self._pool.shutdown()
        for handle, _, _ in self._planes:
            os.close(handle)

    def rows(self, ids: torch.Tensor) -> list[torch.Tensor]:
        """Weights [n, 256] and scales [n, 8] of those ids; zeros for dead ones."""
        distinct, inverse = torch.unique(ids, return_inverse=True)
        wanted: list[int] = distinct.tolist()
        dead = 1 if wanted and wanted[0] < 0 else 0
        spans = self._spans(wanted[dead:])
        found = []
        for handle, offset, width in self._planes:
            jobs = [self._pool.submit(_read_span, handle, offset, width, span) for span in spans]
            data = bytearray(dead * width)
            for job in jobs:
                data += job.result()
            table = torch.frombuffer(data, dtype=torch.uint8).view(len(wanted), width)
            found.append(table[inverse])
        return found

    def _spans(self, rows: list[int]) -> list[list[int]]:
        """Sorted rows in groups that one read each fetches."""
        spans: list[list[int]] = []
        for row in rows:
            if spans and row - spans[-1][-1] <= self.GAP and row - spans[-1][0] < self.SPAN:
                spans[-1].append(row)
            else:
                spans.append([row])
        return spans


def _read_span(handle: int, offset: int, width: int, rows: list[int]) -> bytes:
    first, last = rows[0], rows[-1]
    size = (last - first + 1) * width
    raw = os.pread(handle, size, offset + first * width)
    if len(raw) != size:
        raise ident.Trouble(f"the local shard ends within rows {first}..{last}")
    if len(rows) == last - first + 1:
        return raw
    return b"".join(raw[(row - first) * width : (row - first + 1) * width] for row in rows)


def compare(reader: Reader, shard: LocalShard, ids: list[int], result: LayerResult) -> None:
    """One lookup through the reader, compared with the shard."""
    wanted = torch.tensor(ids, dtype=torch.int64 if len(ids) % 2 else torch.int32)
    before = reader.stats()
    weights, scales = reader.read_rows(wanted)
    after = reader.stats()
    live = any(row >= 0 for row in ids)
    fallbacks = int(after["fallbacks"]) - int(before["fallbacks"])
    result.fallbacks += fallbacks
    if fallbacks or (live and int(after["remote_lookups"]) <= int(before["remote_lookups"])):
        result.not_counted += len(ids)
        return
    mine = shard.rows(wanted)
    wrong = torch.zeros(len(ids), dtype=torch.bool)
    for got, expected in zip((weights, scales), mine, strict=True):
        if got.shape != expected.shape or got.dtype != torch.uint8:
            raise Wrong(f"the reader gave {tuple(got.shape)} of {got.dtype}, expected {tuple(expected.shape)} bytes")
        wrong |= (got.cpu() != expected).any(dim=1)
    result.rows_compared += len(ids)
    if bool(wrong.any()):
        bad = [ids[at] for at in wrong.nonzero().flatten().tolist()]
        result.bad += len(bad)
        result.first_bad = (result.first_bad + bad)[:FIRST_BAD]


def open_reader(given: argparse.Namespace, where: corner_cases.Range, layer: int) -> Reader:
    """The real reader, which must attach or fail."""
    os.environ.update(
        VLLM_ENGRAM_REMOTE=",".join([given.url] * given.tp),
        VLLM_ENGRAM_REMOTE_ROOT=str(given.root),
        VLLM_ENGRAM_REMOTE_REQUIRED="1",
        VLLM_ENGRAM_REMOTE_TIMEOUT_MS=str(given.timeout_ms),
    )
    if given.key_file:
        os.environ["VLLM_ENGRAM_REMOTE_KEY_FILE"] = str(given.key_file)
    sys.path.insert(0, str(given.reader_dir))
    try:
        module = importlib.import_module("dsv41_engram_remote")
    except ModuleNotFoundError as error:
        raise ident.Trouble(f"{given.reader_dir}: no reader: {error} (stage it: dsv41ctl stage)") from error
    try:
        reader: Reader = module.open_remote_table(
            layer=layer,
            shard=given.rank,
            row_start=where.start,
            row_end=where.end,
            model_dir=str(given.model_dir),
            max_rows=given.lookup_rows,
            device="cpu",
        )
    except RuntimeError as error:
        text = str(error).strip()
        if "refused by the server" in text and not any(f"status {code}" in text for code in refusals.BUSY):
            raise Wrong(text) from error
        raise Inconclusive(text) from error
    return reader


def verify_layer(given: argparse.Namespace, layer: ident.Layer, where: corner_cases.Range) -> LayerResult:
    """All corner cases and the sample of one layer."""
    result = LayerResult(layer.layer, where.start, where.end, layer.recomputed)
    shard = LocalShard(given.model_dir, layer)
    try:
        reader = open_reader(given, where, layer.layer)
        try:
            for _, ids in corner_cases.corner_cases(where, given.lookup_rows, given.seed):
                compare(reader, shard, ids, result)
                result.corner_cases += 1
            for ids in corner_cases.sample(where, given.sample, given.seed, given.lookup_rows):
                before = result.rows_compared
                compare(reader, shard, ids, result)
                result.sampled += result.rows_compared - before
        finally:
            reader.close()
    finally:
        shard.close()
    if result.not_counted:
        result.reason = f"{result.not_counted} rows did not come from the remote; {result.fallbacks} fallbacks"
    return result


def target_of(given: argparse.Namespace, layer: ident.Layer, where: corner_cases.Range) -> refusals.Target:
    """What the refusal client opens."""
    shard = LocalShard(given.model_dir, layer)
    try:
        weight, scale = shard.rows(torch.tensor([where.start]))
    finally:
        shard.close()
    row = bytes(weight.flatten().tolist()) + bytes(scale.flatten().tolist())
    key = given.key_file.read_bytes() if given.key_file else b""
    identity = bytes.fromhex(layer.recomputed)
    return refusals.Target(given.url, layer.layer, where.start, where.end, layer.rows, identity, row, key)


def run(given: argparse.Namespace, report: dict[str, Any]) -> int:
    """Everything that was asked for; fills the report as it goes, so that a later failure hides no earlier finding."""
    layers = ident.read_layers(given.root, given.model_dir, given.layer)
    if differs := [f"layer {layer.layer}: {problem}" for layer in layers for problem in layer.problems]:
        raise Wrong(f"the local shard or manifest differs: {differs[0]}")
    ranges = []
    for layer in layers:
        start, end, heads = corner_cases.head_range(layer.head_sizes, given.rank, given.tp)
        planes = tuple((layer.planes[name]["offset"], width) for name, (_, width) in ident.PLANES.items())
        ranges.append(corner_cases.Range(start, end, heads, planes))
    results = []
    for layer, where in zip(layers, ranges, strict=True):
        results.append(verify_layer(given, layer, where))
        report["layers"].append(asdict(results[-1]))
    right = True
    if given.refusals:
        report["refusals"] = refusals.try_refusals(target_of(given, layers[0], ranges[0]))
        right = report["refusals"]["right"] == report["refusals"]["tried"]
    if any(result.bad for result in results) or not right:
        return WRONG
    return INCONCLUSIVE if any(result.not_counted for result in results) else OK


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The arguments."""
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Compare a rank's rows, remote against local, byte by byte.")
    parser.add_argument("--layer", type=int, action="append", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument(
        "--root", type=Path, default=Path(os.environ.get("VLLM_ENGRAM_REMOTE_ROOT", ident.DEFAULT_ROOT))
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--sample", type=int, default=419440, help="random distinct rows of each layer")
    parser.add_argument("--lookup-rows", type=int, default=49152)
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--refusals", action="store_true", help="also try what the server must refuse")
    parser.add_argument("--timeout-ms", type=int, default=TIMEOUT_MS)
    parser.add_argument("--key-file", type=Path, default=os.environ.get("VLLM_ENGRAM_REMOTE_KEY_FILE") or None)
    parser.add_argument("--reader-dir", type=Path, default=here.parent / "py", help="holds dsv41_engram_remote.py")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    given.key_file = Path(given.key_file) if given.key_file else None
    if given.lookup_rows < 1 or given.sample < 0 or given.timeout_ms < 1:
        parser.error("--lookup-rows and --timeout-ms must be at least 1, --sample at least 0")
    try:
        refusals.parse_url(given.url)
    except ValueError as error:
        parser.error(str(error))
    return given


def render(report: dict[str, Any]) -> str:
    """The report for a person."""
    lines = []
    for one in report.get("layers", []):
        bad = f"{one['bad']} bad {one['first_bad']}" if one["bad"] else "0 bad"
        where = f"rank {report['rank']} layer {one['layer']} rows [{one['start']}, {one['end']})"
        counts = f"{one['corner_cases']} corner cases, {one['fallbacks']} fallbacks"
        lines.append(f"{where}: {one['rows_compared']} compared, {bad}, {counts}")
        if one["reason"]:
            lines.append(f"  inconclusive: {one['reason']}")
    if tried := report.get("refusals"):
        lines.append(f"refusals: {tried['right']}/{tried['tried']} right")
        for one in tried["details"]:
            if not one["right"]:
                lines.append(f"  {one['kind']}: expected {one['expected']}, got {one['got']}: {one['reason']}")
    if report.get("error"):
        lines.append(f"{report['verdict']}: {report['error']}")
    return "\n".join(lines)


def outcome(given: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """The exit status and the report, whatever happens."""
    failures: dict[type[Exception], int] = {
        Wrong: WRONG,
        refusals.Contradiction: WRONG,
        Inconclusive: INCONCLUSIVE,
        refusals.Unavailable: INCONCLUSIVE,
        ident.Trouble: TROUBLE,
        ValueError: TROUBLE,
        OSError: TROUBLE,
        RuntimeError: TROUBLE,
    }
    started = time.monotonic()
    report: dict[str, Any] = {"rank": given.rank, "tp": given.tp, "url": given.url, "layers": []}
    try:
        status = run(given, report)
    except tuple(failures) as error:
        status = next(code for kind, code in failures.items() if isinstance(error, kind))
        if any(layer["bad"] for layer in report["layers"]):
            status = WRONG
        report["error"] = str(error)
        print(f"verify_rows: {error}", file=sys.stderr)
    report["seconds"] = round(time.monotonic() - started, 3)
    report["verdict"] = {OK: "ok", WRONG: "wrong", INCONCLUSIVE: "inconclusive"}.get(status, "trouble")
    return status, report


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    given = parse(argv)
    # The extension's build may print on stdout; stdout is for the report alone.
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        status, report = outcome(given)
        print(json.dumps(report) if given.json else render(report), file=out)
    return status


if __name__ == "__main__":
    sys.exit(main())
