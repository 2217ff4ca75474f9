"""Packed files: one layer's two planes in a file of their own, each on a page border, behind a header of one page."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from dsv41ctl.engram.files import atomic_file
from dsv41ctl.engram.hashing import Progress
from dsv41ctl.engram.manifest import LayerTable, Manifest, Plane
from dsv41ctl.engram.safetensors import PLANES, PlaneName, ShardError, shard_path
from dsv41ctl.errors import CheckFailed, Dsv41Error

__all__ = ["MAGIC", "PackedHeader", "check_packed", "pack_layer", "pack_name", "packed_manifest", "read_packed"]

MAGIC = b"DSV41PK1"
_PAGE = 4096
_BLOCK = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PackedHeader:
    """The first page of a packed file."""

    layer: int
    rows: int
    weight_offset: int
    scale_offset: int
    identity: str

    def to_bytes(self) -> bytes:
        """The page."""
        text = json.dumps({name: getattr(self, name) for name in self.__slots__}, separators=(",", ":")).encode()
        return (MAGIC + text).ljust(_PAGE, b"\0")


def pack_name(layer: int) -> str:
    """The packed file's name."""
    return f"engram-layer-{layer:02d}.dsv41pack"


def header_of(table: LayerTable) -> PackedHeader:
    """The header that a packed file of this table has."""
    scale = _PAGE + -(-table.weight.bytes // _PAGE) * _PAGE
    return PackedHeader(table.layer, table.rows, _PAGE, scale, table.identity)


def packed_manifest(manifest: Manifest) -> Manifest:
    """The same tables, said to lie in packed files: same digests, same identities."""
    tables = []
    for table in manifest.layers:
        header = header_of(table)
        weight = _moved(table.weight, table.layer, header.weight_offset)
        scale = _moved(table.scale, table.layer, header.scale_offset)
        tables.append(table.model_copy(update={"weight": weight, "scale": scale}))
    return Manifest.model_validate(manifest.model_copy(update={"layers": tuple(tables)}).model_dump(by_alias=True))


def read_packed(path: Path) -> PackedHeader:
    """Reads a packed file's header.

    Raises:
        ShardError: missing, truncated or not a packed file.
    """
    try:
        with path.open("rb") as file:
            page = file.read(_PAGE)
    except OSError as error:
        raise ShardError(f"cannot read the packed file: {error.strerror}", file=path) from error
    if len(page) < _PAGE or not page.startswith(MAGIC):
        raise ShardError("not a packed file", file=path, expected=MAGIC.decode(), found=repr(page[:8]))
    try:
        data = json.loads(page[len(MAGIC) :].rstrip(b"\0"))
        numbers = [data[name] for name in ("layer", "rows", "weight_offset", "scale_offset")]
        if not all(type(number) is int for number in numbers) or not isinstance(data["identity"], str):
            raise ValueError("a field has the wrong type")
        layer, rows, weight_offset, scale_offset = numbers
        return PackedHeader(layer, rows, weight_offset, scale_offset, data["identity"])
    except (ValueError, KeyError, TypeError) as error:
        raise ShardError("packed header is malformed", file=path, found=error) from error


def check_packed(path: Path, table: LayerTable) -> None:
    """Compares a packed file's header and size with the manifest.

    Raises:
        CheckFailed: it is another table's, or of another length.
        ShardError: it cannot be read.
    """
    found, expected = read_packed(path), header_of(table)
    for name in PackedHeader.__slots__:
        if getattr(found, name) != getattr(expected, name):
            said, says = getattr(expected, name), getattr(found, name)
            raise CheckFailed(f"{path}: layer {table.layer} {name}: the file says {says}, the manifest {said}")
    size, wanted = path.stat().st_size, expected.scale_offset + table.scale.bytes
    if size != wanted:
        raise CheckFailed(f"{path}: layer {table.layer}: the file has {size} bytes, expected {wanted}")


def pack_layer(
    manifest: Manifest, model_dir: Path, layer: int, out_dir: Path, *, progress: Progress | None = None
) -> bool:
    """Copies one table into a packed file, hashing on the way: a packed file that exists is right.

    Returns:
        False when the file is already there.

    Raises:
        CheckFailed: the source does not match the manifest; nothing is written.
        Dsv41Error: no space, or the disk refuses.
    """
    table = manifest.table(layer)
    path, header = out_dir / pack_name(layer), header_of(table)
    if table.weight.packed:
        raise Dsv41Error(f"layer {layer} is already packed in {table.weight.file}")
    if path.exists():
        try:
            check_packed(path, table)
        except (CheckFailed, ShardError):
            pass  # another table's: replaced below
        else:
            return False
    total = header.scale_offset + table.scale.bytes
    _need_space(out_dir, total)
    with atomic_file(path) as file:
        file.write(header.to_bytes())
        done = 0
        for name in PLANES:
            offset = header.weight_offset if name == "weight" else header.scale_offset
            file.seek(offset)
            for block in _checked(table, name, model_dir, manifest.segment_bytes):
                file.write(block)
                done += len(block)
                if progress:
                    progress(done, table.weight.bytes + table.scale.bytes)
    return True


def _checked(table: LayerTable, name: PlaneName, model_dir: Path, segment_bytes: int) -> Iterator[memoryview]:
    """The bytes of a plane; ends with an error at the first segment that does not match."""
    plane = table.plane(name)
    path = shard_path(model_dir, plane.file)
    buffer = memoryview(bytearray(_BLOCK))
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise ShardError(f"cannot read the shard: {error.strerror}", file=path) from error
    with file:
        for index, expected in enumerate(plane.segments):
            digest = sha256()
            at = plane.offset + index * segment_bytes
            end = min(at + segment_bytes, plane.offset + plane.bytes)
            while at < end:
                try:
                    got = os.preadv(file.fileno(), [buffer[: min(_BLOCK, end - at)]], at)
                except OSError as error:
                    raise ShardError(f"cannot read at byte {at}: {error.strerror}", file=path) from error
                if got == 0:
                    tensor = f"layer {table.layer} {name}"
                    raise ShardError("truncated shard", file=path, tensor=tensor, expected=f"{end} bytes", found=at)
                digest.update(buffer[:got])
                at += got
                yield buffer[:got]
            if digest.hexdigest() != expected:
                where = f"layer {table.layer} {name} segment {index}"
                hint = f"dsv41ctl tables verify --model-dir {model_dir}"
                raise CheckFailed(f"{path}: {where} does not match the manifest", hint=hint)


def _moved(plane: Plane, layer: int, offset: int) -> Plane:
    return plane.model_copy(update={"file": pack_name(layer), "tensor": None, "packed": True, "offset": offset})


def _need_space(directory: Path, wanted: int) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(directory).free
    except OSError as error:
        raise Dsv41Error(f"cannot write {directory}: {error.strerror}") from error
    if free < wanted:
        raise Dsv41Error(
            f"{directory}: {wanted} bytes are needed, {free} are free", hint="dsv41ctl tables pack --out ANOTHER_DIR"
        )
