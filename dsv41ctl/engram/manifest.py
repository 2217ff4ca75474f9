"""The manifest: which bytes the tables are. Both sides must agree on the identity before a row moves."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from dsv41ctl.engram.files import atomic_write
from dsv41ctl.engram.hashing import SEGMENT_BYTES, plane_digest
from dsv41ctl.engram.layout import SCALE_BYTES, WEIGHT_BYTES, EngramGeometry
from dsv41ctl.engram.safetensors import PlaneName
from dsv41ctl.errors import Dsv41Error, UsageError

__all__ = [
    "Checkpoint",
    "LayerTable",
    "Manifest",
    "Plane",
    "RowFormat",
    "compute_identity",
    "differences",
    "identity_of",
    "identity_text",
    "load_manifest",
    "save_manifest",
]

Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
# Files are looked up beside each other in one directory; nothing in a manifest may point elsewhere.
FileName = Annotated[str, StringConstraints(pattern=r"^[^/\x00.][^/\x00]*$", max_length=255)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Checkpoint(_Model):
    """What the tables belong to, for people."""

    name: str


class RowFormat(_Model):
    """The one row format there is: 256 fp8 values, then 8 shared exponents."""

    weight_dtype: Literal["F8_E4M3"] = "F8_E4M3"
    weight_bytes: Literal[256] = 256
    scale_dtype: Literal["F8_E8M0"] = "F8_E8M0"
    scale_bytes: Literal[8] = 8
    row_bytes: Literal[264] = 264


class Plane(_Model):
    """One plane: where it lies and the digests of its segments.

    Attributes:
        file: relative to the model directory.
        tensor: its name in a shard; None in a packed file.
        offset: of its first byte in the file.
        digest: sha256 over the raw digests of its segments.
    """

    file: FileName
    tensor: str | None
    packed: bool = False
    offset: int = Field(ge=0)
    bytes: int = Field(ge=1)
    digest: Hex
    segments: tuple[Hex, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.packed != (self.tensor is None):
            raise ValueError("a packed plane has no tensor, and only a packed one")
        if plane_digest(self.segments) != self.digest:
            raise ValueError("digest is not that of the segments")
        return self


class LayerTable(_Model):
    """One layer's table."""

    layer: int = Field(ge=0)
    rows: int = Field(ge=1)
    head_sizes: tuple[int, ...]
    weight: Plane
    scale: Plane
    identity: Hex

    def plane(self, name: PlaneName) -> Plane:
        """The plane of that name."""
        return self.weight if name == "weight" else self.scale


class Manifest(_Model):
    """manifest.json. A manifest that contradicts itself does not load."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    version: Literal[1] = Field(default=1, alias="schema")
    checkpoint: Checkpoint
    geometry: EngramGeometry
    row_format: RowFormat = RowFormat()
    segment_bytes: int = Field(default=SEGMENT_BYTES, ge=1)
    layers: tuple[LayerTable, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        seen: set[int] = set()
        for table in self.layers:
            if table.layer in seen:
                raise ValueError(f"layer {table.layer} stands twice")
            seen.add(table.layer)
            self._check(table)
        return self

    def _check(self, table: LayerTable) -> None:
        name = f"layer {table.layer}"
        if table.layer not in self.geometry.layer_ids:
            raise ValueError(f"{name} is not in the geometry")
        if table.head_sizes != self.geometry.head_sizes(table.layer) or table.rows != sum(table.head_sizes):
            raise ValueError(f"{name}: head sizes or rows do not follow from the geometry")
        for plane, width in ((table.weight, WEIGHT_BYTES), (table.scale, SCALE_BYTES)):
            if plane.bytes != table.rows * width:
                raise ValueError(f"{name}: a plane of {plane.bytes} bytes does not hold {table.rows} rows of {width}")
            if len(plane.segments) != -(-plane.bytes // self.segment_bytes):
                raise ValueError(f"{name}: {len(plane.segments)} segments do not cover {plane.bytes} bytes")
        if identity_of(table, self.segment_bytes) != table.identity:
            raise ValueError(f"{name}: identity {table.identity} is not that of its fields")

    def table(self, layer: int) -> LayerTable:
        """The table of a layer.

        Raises:
            UsageError: the manifest has none.
        """
        for table in self.layers:
            if table.layer == layer:
                return table
        known = ", ".join(str(table.layer) for table in self.layers)
        raise UsageError(f"the manifest has no layer {layer}; it has {known}")

    @property
    def identities(self) -> dict[int, str]:
        """Layer -> identity."""
        return {table.layer: table.identity for table in self.layers}

    @property
    def total_bytes(self) -> int:
        """Bytes of all planes."""
        return sum(table.weight.bytes + table.scale.bytes for table in self.layers)

    def to_json(self) -> bytes:
        """The file's bytes; the same manifest always gives the same ones."""
        data = self.model_dump(mode="json", by_alias=True)
        for table in data["layers"]:
            for plane in (table["weight"], table["scale"]):
                if not plane["packed"]:
                    del plane["packed"]
        return (json.dumps(data, indent=1) + "\n").encode()

    @property
    def digest(self) -> str:
        """sha256 of the file's bytes."""
        return hashlib.sha256(self.to_json()).hexdigest()


def identity_text(
    *, layer: int, rows: int, head_sizes: tuple[int, ...], segment_bytes: int, weight_digest: str, scale_digest: str
) -> str:
    """The text whose sha256 is a table's identity."""
    return (
        "dsv41-engram-identity-v1\n"
        f"layer={layer}\n"
        f"rows={rows}\n"
        f"head_sizes={','.join(str(size) for size in head_sizes)}\n"
        f"segment_bytes={segment_bytes}\n"
        f"weight=F8_E4M3:{WEIGHT_BYTES}:{weight_digest}\n"
        f"scale=F8_E8M0:{SCALE_BYTES}:{scale_digest}\n"
    )


def compute_identity(
    *, layer: int, rows: int, head_sizes: tuple[int, ...], segment_bytes: int, weight_digest: str, scale_digest: str
) -> str:
    """The identity of a table with these properties."""
    text = identity_text(
        layer=layer,
        rows=rows,
        head_sizes=head_sizes,
        segment_bytes=segment_bytes,
        weight_digest=weight_digest,
        scale_digest=scale_digest,
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def identity_of(table: LayerTable, segment_bytes: int) -> str:
    """The identity that follows from a table's fields, whatever it claims."""
    return compute_identity(
        layer=table.layer,
        rows=table.rows,
        head_sizes=table.head_sizes,
        segment_bytes=segment_bytes,
        weight_digest=table.weight.digest,
        scale_digest=table.scale.digest,
    )


def load_manifest(path: Path) -> Manifest:
    """Reads and checks a manifest.

    Raises:
        Dsv41Error: missing, not JSON, or it contradicts itself.
    """
    hint = f"dsv41ctl tables manifest --manifest {path} --model-dir DIR"
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise Dsv41Error(f"{path}: no manifest", hint=hint) from error
    except OSError as error:
        raise Dsv41Error(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise Dsv41Error(f"{path}: {where + ': ' if where else ''}{message}", hint=hint) from error


def save_manifest(manifest: Manifest, path: Path) -> bool:
    """Writes a manifest whole or not at all. False when the file already says so.

    Raises:
        Dsv41Error: the directory or the disk refuses.
    """
    data = manifest.to_json()
    try:
        if path.read_bytes() == data:
            return False
    except OSError:
        pass
    atomic_write(path, data)
    return True


def differences(ours: Manifest, theirs: Manifest) -> list[str]:
    """Names every field in which two manifests describe other tables: `field: ours != theirs`. Empty: the same tables.

    Where the planes lie is compared too, after what they are; the checkpoint's name is not.
    """
    found: list[str] = []

    def compare(name: str, left: object, right: object) -> None:
        if left != right:
            found.append(f"{name}: {_short(left)} != {_short(right)}")

    for field in EngramGeometry.model_fields:
        compare(f"geometry.{field}", getattr(ours.geometry, field), getattr(theirs.geometry, field))
    compare("segment_bytes", ours.segment_bytes, theirs.segment_bytes)
    left = {table.layer: table for table in ours.layers}
    right = {table.layer: table for table in theirs.layers}
    compare("layers", sorted(left), sorted(right))
    shared = [layer for layer in left if layer in right]
    for fields in (("bytes", "digest"), ("file", "tensor", "offset", "packed")):
        for layer in shared:
            for plane in ("weight", "scale"):
                one, other = getattr(left[layer], plane), getattr(right[layer], plane)
                for field in fields:
                    name = f"layer {layer} {plane}.{field}"
                    compare(name, getattr(one, field), getattr(other, field))
                    if field == "digest" and one.digest != other.digest:
                        found.extend(_first_segment(name, one, other))
    for layer in shared:
        compare(f"layer {layer} rows", left[layer].rows, right[layer].rows)
        compare(f"layer {layer} identity", left[layer].identity, right[layer].identity)
    return found


def _first_segment(name: str, one: Plane, other: Plane) -> list[str]:
    pairs = list(zip(one.segments, other.segments, strict=False))
    other_ones = [index for index, (left, right) in enumerate(pairs) if left != right]
    if not other_ones:
        return []
    where = name.removesuffix("digest")
    return [f"{where}segments: {len(other_ones)} of {len(pairs)} differ, the first is {other_ones[0]}"]


def _short(value: object) -> str:
    text = list(value) if isinstance(value, tuple) else value
    shown = str(text)
    return shown if len(shown) <= 64 else f"{shown[:24]}…{shown[-8:]}"
