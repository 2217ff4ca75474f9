"""`dsv41ctl tables`: the Engram tables as files."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv41ctl.cli.context import Json, emit, options

if TYPE_CHECKING:
    from dsv41ctl.engram.hashing import Progress
    from dsv41ctl.engram.layout import EngramGeometry
    from dsv41ctl.engram.manifest import Manifest
    from dsv41ctl.engram.verify import VerifyResult

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Manifest, identity and bytes of the Engram tables.")

ModelDir = Annotated[
    Path | None, typer.Option("--model-dir", help="The checkpoint's directory. [default: the cluster file's]")
]
ManifestFile = Annotated[
    Path | None,
    typer.Option("--manifest", help="The manifest. [default: the cluster file's, else MODEL_DIR/manifest.json]"),
]
Layers = Annotated[list[int] | None, typer.Option("--layer", help="Only this layer; may be repeated.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, max=256, help="Hashing threads. [default: cores]")]


@app.command("manifest")
def make_manifest(
    ctx: typer.Context,
    model_dir: ModelDir = None,
    manifest: ManifestFile = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The checkpoint's name. [default: its directory's]")
    ] = None,
    layer: Layers = None,
    threads: Threads = None,
    rehash: Annotated[bool, typer.Option("--rehash", help="Hash even if the manifest looks up to date.")] = False,
) -> None:
    """Hash the tables of a checkpoint and write its manifest."""
    from dsv41ctl.engram.build import build_manifest, is_current
    from dsv41ctl.engram.hashing import SEGMENT_BYTES
    from dsv41ctl.engram.manifest import differences, load_manifest, save_manifest
    from dsv41ctl.errors import Dsv41Error

    source, path = _places(ctx, model_dir, manifest)
    try:
        old = load_manifest(path)
    except Dsv41Error:
        old = None
    if old is not None and not rehash and is_current(old, source, path, layer):
        _manifest_done(ctx, "unchanged", path, old, [])
        return
    if options(ctx).dry_run:
        emit(ctx, {"step": "would change", "manifest": str(path)}, lambda: f"would change {path}")
        return
    with _progress("hash") as progress:
        # Segment size is part of the identity: the same bytes hashed again must give the same one.
        made = build_manifest(
            source,
            name=name or (old.checkpoint.name if old is not None else None),
            layers=layer,
            segment_bytes=old.segment_bytes if old is not None else SEGMENT_BYTES,
            threads=threads,
            progress=progress,
        )
    found = differences(made, old) if old is not None else []
    changed = save_manifest(made, path)
    if not changed:
        path.touch()  # it was looked at now; the next run need not hash again
    _manifest_done(ctx, "changed" if changed else "unchanged", path, made, found)


@app.command()
def verify(
    ctx: typer.Context,
    model_dir: ModelDir = None,
    manifest: ManifestFile = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="Keeps what is done. [default: beside the manifest]")
    ] = None,
    layer: Layers = None,
    threads: Threads = None,
    first: Annotated[bool, typer.Option("--first", help="Stop at the first mismatch.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, whatever an interrupted run did.")] = False,
) -> None:
    """Hash every segment of the tables again and compare with the manifest. Interrupted, it goes on where it was."""
    from dsv41ctl.engram.manifest import load_manifest
    from dsv41ctl.engram.verify import default_state, verify_tables
    from dsv41ctl.errors import CheckFailed

    source, path = _places(ctx, model_dir, manifest)
    kept = state or default_state(path)
    said = load_manifest(path)
    if options(ctx).dry_run:
        text = f"would read {said.total_bytes} bytes in {source} and compare them with {path}"
        emit(ctx, {"step": "would read", "bytes": said.total_bytes, "manifest": str(path)}, lambda: text)
        return
    if fresh:
        kept.unlink(missing_ok=True)
    with _progress("verify") as progress:
        result = verify_tables(
            said, source, state_path=kept, layers=layer, threads=threads, stop_at_first=first, progress=progress
        )
    _verified(ctx, said, result)
    if not result.ok:
        raise CheckFailed(
            f"{len(result.mismatches)} of {result.segments} segments do not match {path}, first {result.mismatches[0]}",
            hint="fetch the named shard again, then dsv41ctl tables verify",
        )


@app.command()
def synth(
    ctx: typer.Context,
    model_dir: ModelDir = None,
    vocab_size: Annotated[
        int, typer.Option("--vocab-size", min=64, help="Rows of a table are about 24 times that.")
    ] = 16000,
    layer: Layers = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed, the same bytes.")] = 41,
) -> None:
    """Write a small made-up checkpoint: real names and layout, bytes from a seed."""
    from dsv41ctl.engram.layout import EngramGeometry
    from dsv41ctl.engram.synth import synth_checkpoint

    target = _model_dir(ctx, model_dir)
    layers = tuple(dict.fromkeys(layer)) if layer else (1, 14)
    rows = dict(zip(layers, EngramGeometry.make(vocab_size=vocab_size, layer_ids=layers).num_embeddings, strict=True))
    if options(ctx).dry_run:
        step = "would change"
    else:
        with _progress("synth") as progress:
            done = synth_checkpoint(target, vocab_size=vocab_size, layers=layers, seed=seed, progress=progress)
        step = "changed" if done else "unchanged"
    listed = {str(number): count for number, count in rows.items()}
    emit(
        ctx,
        {"step": step, "model_dir": str(target), "vocab_size": vocab_size, "seed": seed, "rows": dict(listed)},
        lambda: f"{step} {target}: " + ", ".join(f"layer {number} {count} rows" for number, count in rows.items()),
    )


@app.command()
def pack(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option("--out", help="Directory for the packed files and their manifest.")],
    model_dir: ModelDir = None,
    manifest: ManifestFile = None,
) -> None:
    """Copy the tables into packed files, which load without the rest of the checkpoint. Checked while copied."""
    from dsv41ctl.engram.manifest import load_manifest, save_manifest
    from dsv41ctl.engram.pack import pack_layer, pack_name, packed_manifest

    source, path = _places(ctx, model_dir, manifest)
    said = load_manifest(path)
    steps: dict[str, str] = {}
    for table in said.layers:
        file = pack_name(table.layer)
        if options(ctx).dry_run:
            steps[file] = "would change"
            continue
        with _progress(f"pack layer {table.layer}") as progress:
            done = pack_layer(said, source, table.layer, out, progress=progress)
        steps[file] = "changed" if done else "unchanged"
    if not options(ctx).dry_run:
        steps["manifest.json"] = (
            "changed" if save_manifest(packed_manifest(said), out / "manifest.json") else "unchanged"
        )
    emit(
        ctx,
        {"out": str(out), "steps": dict(steps), "identities": _identities(said)},
        lambda: "\n".join(f"{step} {out / file}" for file, step in steps.items()),
    )


@app.command()
def show(
    ctx: typer.Context,
    model_dir: ModelDir = None,
    manifest: ManifestFile = None,
    tp: Annotated[
        int | None, typer.Option("--tp", min=1, help="Tensor-parallel size. [default: the cluster's, else 2]")
    ] = None,
) -> None:
    """Show geometry, the ranges of the ranks, where the planes lie, and identities if there is a manifest."""
    from dsv41ctl.engram.layout import read_geometry
    from dsv41ctl.engram.manifest import load_manifest

    found = options(ctx)
    ranks = tp or (found.load().tp if found.cluster is not None else 2)
    source, path = _places(ctx, model_dir, manifest)
    said = load_manifest(path) if path.exists() else None
    geometry = said.geometry if said is not None else read_geometry(source)
    identities = _identities(said) if said is not None else {}
    layers: list[Json] = [
        {
            "layer": layer,
            "rows": geometry.rows(layer),
            "ranges": [[shard.start, shard.end] for shard in geometry.shards(layer, ranks)],
            "planes": _planes(source, said, geometry, layer),
            "identity": identities.get(str(layer)),
        }
        for layer in geometry.layer_ids
    ]
    emit(
        ctx,
        {"geometry": geometry.model_dump(mode="json"), "tp": ranks, "layers": layers},
        lambda: _show_text(geometry, ranks, identities),
    )


def _model_dir(ctx: typer.Context, given: Path | None) -> Path:
    from dsv41ctl.errors import UsageError

    if given is not None:
        return given.expanduser()
    if options(ctx).cluster is None:
        raise UsageError("no model directory", hint="pass --model-dir DIR, or --cluster FILE")
    return Path(options(ctx).load().tables.model_dir).expanduser()


def _places(ctx: typer.Context, model_dir: Path | None, manifest: Path | None) -> tuple[Path, Path]:
    """The model directory and the manifest: as given, else the cluster file's, else manifest.json in the former."""
    source = _model_dir(ctx, model_dir)
    if manifest is not None:
        return source, manifest.expanduser()
    if options(ctx).cluster is not None and model_dir is None:
        named = options(ctx).load().tables.manifest
        if named is not None:
            return source, Path(named).expanduser()
    return source, source / "manifest.json"


@contextmanager
def _progress(what: str) -> "Iterator[Progress]":
    """A bar on stderr; nothing at all where stderr is no terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from dsv41ctl.cli.context import stderr

    console = stderr()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        yield update


def _identities(manifest: "Manifest") -> dict[str, Json]:
    return {str(layer): identity for layer, identity in manifest.identities.items()}


def _manifest_done(ctx: typer.Context, step: str, path: Path, manifest: "Manifest", found: list[str]) -> None:
    lines = [f"{step} {path}", *(f"  was: {line}" for line in found)]
    lines += [f"layer {table.layer}: {table.rows} rows, identity {table.identity}" for table in manifest.layers]
    emit(
        ctx,
        {
            "step": step,
            "manifest": str(path),
            "differences": list(found),
            "bytes": manifest.total_bytes,
            "identities": _identities(manifest),
        },
        lambda: "\n".join(lines),
    )


def _verified(ctx: typer.Context, manifest: "Manifest", result: "VerifyResult") -> None:
    bad: list[Json] = [asdict(mismatch) for mismatch in result.mismatches]
    rate = result.bytes / 1e9 / result.seconds if result.seconds and not result.resumed else None
    summary = f"verified {result.hashed + result.resumed} of {result.segments} segments, {len(bad)} do not match"
    if result.resumed:
        summary += f" ({result.resumed} taken over from an interrupted run)"
    if rate:
        summary += f", {rate:.2f} GB/s"
    emit(
        ctx,
        {
            "ok": result.ok,
            "complete": result.complete,
            "segments": result.segments,
            "hashed": result.hashed,
            "resumed": result.resumed,
            "bytes": result.bytes,
            "seconds": round(result.seconds, 3),
            "identities": _identities(manifest),
            "mismatches": bad,
        },
        lambda: "\n".join([summary, *(str(mismatch) for mismatch in result.mismatches)]),
    )


def _planes(source: Path, manifest: "Manifest | None", geometry: "EngramGeometry", layer: int) -> list[Json]:
    """Where the planes lie: by the manifest, else by the shards' headers."""
    from dsv41ctl.engram.safetensors import PLANES, layer_planes

    if manifest is None:
        found = layer_planes(source, layer, geometry.rows(layer))
        return [
            {"plane": name, "file": info.file, "offset": info.offset, "bytes": info.bytes}
            for name, info in zip(PLANES, found, strict=True)
        ]
    if layer not in manifest.identities:
        return []
    table = manifest.table(layer)
    planes = [(name, table.plane(name)) for name in PLANES]
    return [
        {"plane": name, "file": plane.file, "offset": plane.offset, "bytes": plane.bytes, "digest": plane.digest}
        for name, plane in planes
    ]


def _show_text(geometry: "EngramGeometry", ranks: int, identities: "Mapping[str, Json]") -> str:
    lines = [f"{geometry.n_hash_cols} heads a layer, primes from {geometry.vocab_size}, rows of 264 bytes"]
    for layer in geometry.layer_ids:
        identity = identities.get(str(layer), "unknown (no manifest)")
        lines.append(f"layer {layer}: {geometry.rows(layer)} rows, identity {identity}")
        for shard in geometry.shards(layer, ranks):
            heads = f"heads {shard.head_start}..{shard.head_end - 1}"
            lines.append(f"  rank {shard.rank}/{ranks}: rows [{shard.start}, {shard.end}), {heads}")
    return "\n".join(lines)
