"""Makes a manifest from a checkpoint by hashing every byte of its tables."""

from collections.abc import Sequence
from pathlib import Path

from dsv41ctl.engram.hashing import (
    SEGMENT_BYTES,
    Progress,
    Segment,
    default_threads,
    hash_segments,
    plane_digest,
    segments_of,
)
from dsv41ctl.engram.layout import EngramGeometry, read_geometry
from dsv41ctl.engram.manifest import Checkpoint, LayerTable, Manifest, Plane, compute_identity
from dsv41ctl.engram.safetensors import PLANES, PlaneName, ShardError, TensorInfo, layer_planes
from dsv41ctl.errors import Dsv41Error

__all__ = ["build_manifest", "file_stamp", "is_current", "placement_differences"]

Planes = dict[tuple[int, PlaneName], TensorInfo]


def build_manifest(
    model_dir: Path,
    *,
    name: str | None = None,
    layers: Sequence[int] | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Hashes the tables of a checkpoint.

    Args:
        model_dir: holds config.json, the index and the shards.
        name: the checkpoint's name; its directory's by default.
        layers: those layers only.
        segment_bytes: bytes of a segment; part of the identity.
        threads: hashing threads.
        progress: told about hashed bytes.

    Raises:
        ShardError: a shard is missing, truncated or holds something else, or changed while it was hashed.
        Dsv41Error: config.json is not usable.
    """
    geometry = read_geometry(model_dir)
    wanted = list(geometry.layer_ids) if layers is None else list(dict.fromkeys(layers))
    planes = _find(model_dir, geometry, wanted)
    stamps = {info.path: file_stamp(info.path) for info in planes.values()}
    segments = [
        segment
        for (layer, plane), info in planes.items()
        for segment in segments_of(layer, plane, info.path, info.offset, info.bytes, segment_bytes)
    ]
    digests = _hash_all(segments, default_threads() if threads is None else threads, progress)
    for path, stamp in stamps.items():
        if file_stamp(path) != stamp:
            raise ShardError("changed while it was hashed", file=path, hint="dsv41ctl tables manifest")
    tables = []
    for layer in wanted:
        made = {plane: _plane(planes[layer, plane], digests[layer, plane]) for plane in PLANES}
        tables.append(_table(geometry, layer, made["weight"], made["scale"], segment_bytes))
    return Manifest(
        checkpoint=Checkpoint(name=name or model_dir.resolve().name),
        geometry=geometry,
        segment_bytes=segment_bytes,
        layers=tuple(tables),
    )


def is_current(manifest: Manifest, model_dir: Path, manifest_path: Path, layers: Sequence[int] | None = None) -> bool:
    """Whether a manifest still fits without hashing: same geometry and placement, and no shard changed after it.

    A shard's change time counts besides its modification time, since copying tools set the latter back.
    """
    try:
        if manifest.geometry != read_geometry(model_dir) or placement_differences(manifest, model_dir):
            return False
        wanted = manifest.geometry.layer_ids if layers is None else layers
        if set(wanted) != set(manifest.identities):
            return False
        written = manifest_path.stat().st_mtime_ns
        for table in manifest.layers:
            for plane in (table.weight, table.scale):
                state = (model_dir / plane.file).stat()
                if max(state.st_mtime_ns, state.st_ctime_ns) >= written:
                    return False
    except (Dsv41Error, OSError):
        return False
    return True


def placement_differences(manifest: Manifest, model_dir: Path) -> list[str]:
    """How the shards' headers differ from what the manifest says about its unpacked planes.

    Raises:
        ShardError: a plane cannot be found at all.
    """
    found = []
    for table in manifest.layers:
        if table.weight.packed or table.scale.packed:
            continue
        for plane, info in zip(PLANES, layer_planes(model_dir, table.layer, table.rows), strict=True):
            said = table.plane(plane)
            for field, here, there in (
                ("file", info.file, said.file),
                ("tensor", info.name, said.tensor),
                ("offset", info.offset, said.offset),
                ("bytes", info.bytes, said.bytes),
            ):
                if here != there:
                    found.append(f"layer {table.layer} {plane}.{field}: the shard says {here}, the manifest {there}")
    return found


def file_stamp(path: Path) -> tuple[int, int, int]:
    """Size, modification and inode of a file: another stamp, another file.

    Raises:
        ShardError: it cannot be looked at.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise ShardError("missing shard" if error.errno == 2 else str(error.strerror), file=path) from error
    return state.st_size, state.st_mtime_ns, state.st_ino


def _find(model_dir: Path, geometry: EngramGeometry, layers: Sequence[int]) -> Planes:
    planes: Planes = {}
    for layer in layers:
        found = layer_planes(model_dir, layer, geometry.rows(layer))
        planes.update({(layer, plane): info for plane, info in zip(PLANES, found, strict=True)})
    return planes


def _hash_all(
    segments: Sequence[Segment], threads: int, progress: Progress | None
) -> dict[tuple[int, PlaneName], dict[int, str]]:
    total, done = sum(segment.bytes for segment in segments), 0
    digests: dict[tuple[int, PlaneName], dict[int, str]] = {}
    if progress:
        progress(0, total)
    for segment, digest in hash_segments(segments, threads=threads):
        digests.setdefault((segment.layer, segment.plane), {})[segment.index] = digest
        done += segment.bytes
        if progress:
            progress(done, total)
    return digests


def _plane(info: TensorInfo, digests: dict[int, str]) -> Plane:
    segments = tuple(digests[index] for index in range(len(digests)))
    return Plane(
        file=info.file,
        tensor=info.name,
        offset=info.offset,
        bytes=info.bytes,
        digest=plane_digest(segments),
        segments=segments,
    )


def _table(geometry: EngramGeometry, layer: int, weight: Plane, scale: Plane, segment_bytes: int) -> LayerTable:
    rows, head_sizes = geometry.rows(layer), geometry.head_sizes(layer)
    identity = compute_identity(
        layer=layer,
        rows=rows,
        head_sizes=head_sizes,
        segment_bytes=segment_bytes,
        weight_digest=weight.digest,
        scale_digest=scale.digest,
    )
    return LayerTable(layer=layer, rows=rows, head_sizes=head_sizes, weight=weight, scale=scale, identity=identity)
