"""Verifies tables against a manifest by hashing every segment again; what is already done survives an interruption."""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from dsv41ctl.engram.build import file_stamp, placement_differences
from dsv41ctl.engram.files import atomic_write
from dsv41ctl.engram.hashing import Progress, Segment, default_threads, hash_segments, segments_of
from dsv41ctl.engram.manifest import Manifest
from dsv41ctl.engram.pack import check_packed
from dsv41ctl.engram.safetensors import PLANES, ShardError, shard_path
from dsv41ctl.errors import CheckFailed

__all__ = ["Mismatch", "VerifyResult", "default_state", "verify_tables"]

_SAVE_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A segment whose bytes are not those of the manifest; [begin, end) counts within the file."""

    layer: int
    plane: str
    segment: int
    file: str
    begin: int
    end: int
    first_row: int
    last_row: int
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"layer {self.layer} {self.plane} segment {self.segment}: bytes [{self.begin}, {self.end}) of {self.file}"
            f" (rows {self.first_row}..{self.last_row}), expected {self.expected[:16]}…, found {self.found[:16]}…"
        )


@dataclass(slots=True)
class VerifyResult:
    """What a run did.

    Attributes:
        segments: all segments of the manifest (of the layers asked for).
        hashed: hashed by this run.
        resumed: taken over from an interrupted run.
        complete: whether every segment was looked at.
    """

    segments: int = 0
    hashed: int = 0
    resumed: int = 0
    bytes: int = 0
    seconds: float = 0.0
    complete: bool = False
    mismatches: list[Mismatch] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Every segment was looked at, and every one matches."""
        return self.complete and not self.mismatches


class _State(BaseModel):
    """The state file. Only segments that match are kept, so that a mismatch is looked at again."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = 1
    manifest: str
    files: dict[str, tuple[int, int, int]]
    done: dict[str, list[int]]


def default_state(manifest_path: Path) -> Path:
    """The state file beside a manifest."""
    return manifest_path.with_name(f"{manifest_path.name}.verify-state")


def verify_tables(
    manifest: Manifest,
    model_dir: Path,
    *,
    state_path: Path | None = None,
    layers: Sequence[int] | None = None,
    threads: int | None = None,
    stop_at_first: bool = False,
    progress: Progress | None = None,
) -> VerifyResult:
    """Hashes every segment and compares.

    Args:
        manifest: says what the bytes should be.
        model_dir: holds the files that the manifest names.
        state_path: keeps what is done, also when interrupted; removed by a run that looked at everything.
        layers: those layers only.
        threads: hashing threads.
        stop_at_first: end at the first mismatch.
        progress: told about finished bytes.

    Raises:
        CheckFailed: the files' headers already contradict the manifest.
        ShardError: a file cannot be read.
    """
    started = time.monotonic()
    work = _segments(manifest, model_dir, layers)
    keeper = _Keeper(manifest, sorted({segment.path for segment in work}), state_path)
    todo = [segment for segment in work if not keeper.is_done(segment)]
    result = VerifyResult(segments=len(work), resumed=len(work) - len(todo), bytes=sum(one.bytes for one in work))
    done = result.bytes - sum(segment.bytes for segment in todo)
    if progress:
        progress(done, result.bytes)
    try:
        with closing(hash_segments(todo, threads=default_threads() if threads is None else threads)) as digests:
            for segment, digest in digests:
                result.hashed += 1
                done += segment.bytes
                if bad := _compare(manifest, segment, digest):
                    result.mismatches.append(bad)
                    if stop_at_first:
                        break
                else:
                    keeper.add(segment)
                if progress:
                    progress(done, result.bytes)
    except BaseException:
        keeper.save()
        raise
    keeper.check_unchanged()
    result.complete = result.hashed + result.resumed == result.segments
    if result.complete:
        keeper.remove()
    else:
        keeper.save()
    result.mismatches.sort(key=lambda bad: (bad.layer, bad.plane != "weight", bad.segment))
    result.seconds = time.monotonic() - started
    return result


def _segments(manifest: Manifest, model_dir: Path, layers: Sequence[int] | None) -> list[Segment]:
    tables = manifest.layers if layers is None else [manifest.table(layer) for layer in dict.fromkeys(layers)]
    part = manifest.model_copy(update={"layers": tuple(tables)})
    if moved := placement_differences(part, model_dir):
        more = f" (and {len(moved) - 1} more)" if len(moved) > 1 else ""
        hint = f"dsv41ctl tables manifest --model-dir {model_dir}, if this is the right checkpoint"
        raise CheckFailed(f"{model_dir}: manifest of another checkpoint: {moved[0]}{more}", hint=hint)
    found: list[Segment] = []
    for table in tables:
        for name in PLANES:
            plane = table.plane(name)
            path = shard_path(model_dir, plane.file)
            size, end = file_stamp(path)[0], plane.offset + plane.bytes
            if size < end:
                tensor = f"layer {table.layer} {name}"
                raise ShardError("truncated shard", file=path, tensor=tensor, expected=f"{end} bytes", found=size)
            found.extend(segments_of(table.layer, name, path, plane.offset, plane.bytes, manifest.segment_bytes))
        if table.weight.packed:
            check_packed(shard_path(model_dir, table.weight.file), table)
    return found


def _compare(manifest: Manifest, segment: Segment, digest: str) -> Mismatch | None:
    table = manifest.table(segment.layer)
    expected = table.plane(segment.plane).segments[segment.index]
    if expected == digest:
        return None
    plane = table.plane(segment.plane)
    width, at = plane.bytes // table.rows, segment.offset - plane.offset
    return Mismatch(
        layer=segment.layer,
        plane=segment.plane,
        segment=segment.index,
        file=segment.path.name,
        begin=segment.offset,
        end=segment.offset + segment.bytes,
        first_row=at // width,
        last_row=(at + segment.bytes - 1) // width,
        expected=expected,
        found=digest,
    )


class _Keeper:
    """Remembers finished segments. What belongs to another manifest or to a file that changed is forgotten."""

    def __init__(self, manifest: Manifest, paths: Sequence[Path], state_path: Path | None) -> None:
        self._path = state_path
        self._paths = paths
        self._manifest = manifest.digest
        self._stamps = {path.name: file_stamp(path) for path in paths}
        self._saved_at = time.monotonic()
        self._done: dict[str, set[int]] = {}
        self._load()
        if state_path is not None:
            self.save()  # a place that cannot be written is told now, not after an hour

    def _load(self) -> None:
        if self._path is None:
            return
        try:
            state = _State.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return
        if state.schema_version != 1 or state.manifest != self._manifest:
            return
        for key, indexes in state.done.items():
            file = key.split("|")[-1]
            if state.files.get(file) == self._stamps.get(file):
                self._done[key] = set(indexes)

    @staticmethod
    def _key(segment: Segment) -> str:
        return f"{segment.layer}|{segment.plane}|{segment.path.name}"

    def is_done(self, segment: Segment) -> bool:
        return segment.index in self._done.get(self._key(segment), ())

    def add(self, segment: Segment) -> None:
        self._done.setdefault(self._key(segment), set()).add(segment.index)
        if time.monotonic() - self._saved_at >= _SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        if self._path is None:
            return
        done = {key: sorted(indexes) for key, indexes in self._done.items()}
        state = _State(manifest=self._manifest, files=self._stamps, done=done)
        atomic_write(self._path, state.model_dump_json().encode())
        self._saved_at = time.monotonic()

    def remove(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def check_unchanged(self) -> None:
        for path in self._paths:
            if file_stamp(path) != self._stamps[path.name]:
                self.save()  # its old stamp makes the next run forget this file
                raise ShardError("changed while it was verified", file=path, hint="dsv41ctl tables verify")
