"""`dsv41ctl overlay`: render, diff and derive overlays, list edit sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv41ctl.cli.context import emit, note, options
from dsv41ctl.jsontypes import Json

if TYPE_CHECKING:
    from dsv41ctl.overlay import Derived, EditSet, Rendered

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="The image's engram.py plus an edit set.")

ImageFile = Annotated[
    Path | None, typer.Option("--image-file", help="The image's engram.py, copied out of it; the lab's own by default.")
]
Set = Annotated[str | None, typer.Option("--edit-set", help="Name of the edit set; the one that knows the file.")]


@app.command("render")
def render_(
    ctx: typer.Context,
    image_file: ImageFile = None,
    edit_set: Set = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the overlay here, not on stdout.")] = None,
) -> None:
    """Renders the overlay: the image's file with every edit of the set made in it."""
    rendered = _rendered(ctx, image_file, edit_set)
    data: dict[str, Json] = {**_facts(rendered), "text": rendered.text}
    if out is None:
        emit(ctx, data, lambda: rendered.text.removesuffix("\n"))
        return
    word = _write(out, rendered.data, dry_run=options(ctx).dry_run)
    del data["text"]
    emit(
        ctx,
        {**data, "out": str(out), "step": word},
        lambda: f"{word}: {out} (edit set {rendered.edit_set}, sha256 {rendered.sha256})",
    )


@app.command()
def diff(ctx: typer.Context, image_file: ImageFile = None, edit_set: Set = None) -> None:
    """Shows what the overlay changes in the image's file, as a unified diff."""
    rendered = _rendered(ctx, image_file, edit_set)
    emit(ctx, {**_facts(rendered), "diff": rendered.diff}, lambda: rendered.diff.removesuffix("\n"))


@app.command()
def derive(
    ctx: typer.Context, file: Annotated[Path, typer.Argument(help="An image's engram.py, copied out of it.")]
) -> None:
    """Tries every edit set on a file and says which anchor failed where."""
    import hashlib

    from dsv41ctl.errors import CheckFailed
    from dsv41ctl.overlay import derive as try_all

    source = _read(file)
    sha256 = hashlib.sha256(source).hexdigest()
    results = try_all(source)
    emit(
        ctx,
        {"file": str(file), "sha256": sha256, "edit_sets": [_shaped(one) for one in results]},
        lambda: _words(results),
    )
    if any(result.known and result.fits for result in results):
        return
    fitting = [result.edit_set for result in results if result.fits]
    if not fitting:
        raise CheckFailed(f"no edit set fits {file} (sha256 {sha256})")
    raise CheckFailed(
        f"edit set {fitting[0]} fits {file}, but does not name its sha256 {sha256}; "
        "read the file's other changes, then add the sha256 to the set's image_sha256"
    )


@app.command("list")
def list_(ctx: typer.Context) -> None:
    """Lists the edit sets and the image files that each was made for."""
    from dsv41ctl.overlay import load_edit_sets

    sets = load_edit_sets()
    data: Json = [
        {
            "name": one.name,
            "module": one.module,
            "image_sha256": list(one.image_sha256),
            "edits": [edit.name for edit in one.edits],
        }
        for one in sets
    ]
    emit(ctx, data, lambda: "\n".join(_line(one) for one in sets))


def _line(edit_set: "EditSet") -> str:
    edits = ", ".join(edit.name for edit in edit_set.edits)
    shas = "\n".join(f"  image sha256 {sha256}" for sha256 in edit_set.image_sha256)
    return f"{edit_set.name}: module {edit_set.module}, edits: {edits}\n{shas}"


def _rendered(ctx: typer.Context, image_file: Path | None, name: str | None) -> "Rendered":
    import hashlib

    from dsv41ctl.errors import UsageError
    from dsv41ctl.overlay import load_edit_set, load_edit_sets, render

    given = options(ctx)
    cluster = given.load() if given.cluster is not None else None
    if image_file is None:
        if cluster is not None and cluster.lab is None:
            raise UsageError(
                f"the image {cluster.image.reference} is not on this machine",
                hint=f"docker run --rm --entrypoint cat {cluster.image.reference} {cluster.image.engram_path} "
                "> engram.py; dsv41ctl overlay render --image-file engram.py",
            )
        from dsv41ctl.lab.layout import IMAGE_ENGRAM, IMAGE_SOURCE

        image_file = IMAGE_SOURCE / IMAGE_ENGRAM
    source = _read(image_file)
    name = name or (cluster.image.edit_set if cluster is not None else None)
    if name is None:
        sha256 = hashlib.sha256(source).hexdigest()
        known = [one.name for one in load_edit_sets() if sha256 in one.image_sha256]
        if not known:
            raise UsageError(
                f"no edit set knows {image_file} (sha256 {sha256})", hint=f"dsv41ctl overlay derive {image_file}"
            )
        name = known[0]
    rendered = render(source, load_edit_set(name))
    note(f"edit set {rendered.edit_set}, image sha256 {rendered.image_sha256}, overlay sha256 {rendered.sha256}")
    return rendered


def _read(path: Path) -> bytes:
    from dsv41ctl.errors import UsageError

    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def _write(path: Path, data: bytes, *, dry_run: bool) -> str:
    from dsv41ctl.errors import Dsv41Error

    try:
        if path.is_file() and path.read_bytes() == data:
            return "unchanged"
        if dry_run:
            return "would change"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise Dsv41Error(f"cannot write {path}: {error.strerror}") from error
    return "changed"


def _facts(rendered: "Rendered") -> dict[str, Json]:
    return {
        "edit_set": rendered.edit_set,
        "module": rendered.module,
        "image_sha256": rendered.image_sha256,
        "sha256": rendered.sha256,
    }


def _shaped(result: "Derived") -> Json:
    problems: list[Json] = [
        {"edit": problem.edit, "lines": list(problem.lines), "reason": problem.reason} for problem in result.problems
    ]
    return {"name": result.edit_set, "known": result.known, "fits": result.fits, "problems": problems}


def _words(results: "list[Derived]") -> str:
    lines = []
    for result in results:
        known = "knows this file" if result.known else "does not name this sha256"
        lines.append(f"{result.edit_set}: {'fits' if result.fits else 'does not fit'}, {known}")
        lines += [f"  edit {problem.edit}: {problem.reason}" for problem in result.problems]
    return "\n".join(lines)
