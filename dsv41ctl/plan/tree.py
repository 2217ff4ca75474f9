"""The staged tree of a node: our rooms mapped onto the seed's paths."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from dsv41ctl import __version__
from dsv41ctl.config import Cluster
from dsv41ctl.errors import Dsv41Error

__all__ = ["MANIFEST", "OVERLAY", "STAGED", "OverlayFile", "Staged", "server_tree", "stage_tree"]

MANIFEST = "manifest.json"
STAGED = "staged.json"
_SPARK = "offload/engram/spark"
OVERLAY = f"{_SPARK}/engram.py"


class OverlayFile(Protocol):
    """A rendered overlay (`dsv41ctl.overlay.Rendered`)."""

    @property
    def text(self) -> str:
        """The file."""
        ...

    @property
    def sha256(self) -> str:
        """Of the file."""
        ...

    @property
    def image_sha256(self) -> str:
        """Of the image's file that it was rendered from."""
        ...


@dataclass(frozen=True)
class Staged:
    """staged.json: what was staged.

    Attributes:
        files: path -> sha256 of every other staged file.
    """

    files: Mapping[str, str]
    overlay_sha256: str | None
    image_sha256: str | None
    edit_set: str | None
    version: str

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Reads a staged.json.

        Raises:
            Dsv41Error: it is none.
        """
        try:
            document = json.loads(data)
            overlay = document["overlay"]
            return cls(
                files={str(path): str(digest) for path, digest in document["files"].items()},
                overlay_sha256=overlay["sha256"],
                image_sha256=overlay["image_sha256"],
                edit_set=overlay["edit_set"],
                version=str(document["dsv41ctl"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Dsv41Error(f"staged.json cannot be read: {error}", hint="dsv41ctl stage") from error

    def dump(self) -> bytes:
        """The file. Has no time in it: staging the same again changes nothing."""
        document = {
            "schema": 1,
            "dsv41ctl": self.version,
            "overlay": {
                "sha256": self.overlay_sha256,
                "image_sha256": self.image_sha256,
                "edit_set": self.edit_set,
            },
            "files": dict(sorted(self.files.items())),
        }
        return (json.dumps(document, indent=1) + "\n").encode()


def stage_tree(
    cluster: Cluster,
    native_dir: Path,
    overlays_dir: Path,
    rendered_overlay: OverlayFile | None,
    manifest_bytes: bytes | None,
) -> dict[str, bytes]:
    """Relative path -> content of every staged file; staged.json comes last.

    Args:
        cluster: the cluster file.
        native_dir: the C++ sources.
        overlays_dir: sitecustomize, helpers and tools.
        rendered_overlay: None where the image cannot be read (offline): then it is left out, and so is staged.json.
        manifest_bytes: None where there is none: the same.

    Raises:
        Dsv41Error: a room is missing or empty.
    """
    tree: dict[str, bytes] = {}
    if manifest_bytes is not None:
        tree[MANIFEST] = manifest_bytes
    for room in ("transport", "reader"):
        for path in _sources(native_dir / room, (".h", ".cpp")):
            # The server's side needs libraries that a node does not have.
            if "_server" in path.stem:
                continue
            target = f"{_SPARK}/{path.name}" if path.name == "engram_remote.cpp" else f"offload/{room}/{path.name}"
            tree[target] = path.read_bytes()
    for room in ("py", "tools"):
        for path in _sources(overlays_dir / room, (".py",)):
            tree[f"{_SPARK}/{room}/{path.name}"] = path.read_bytes()
    if rendered_overlay is not None:
        tree[OVERLAY] = rendered_overlay.text.encode()
    if rendered_overlay is not None and manifest_bytes is not None:
        staged = Staged(
            files={path: hashlib.sha256(data).hexdigest() for path, data in tree.items()},
            overlay_sha256=rendered_overlay.sha256,
            image_sha256=rendered_overlay.image_sha256,
            edit_set=cluster.image.edit_set,
            version=__version__,
        )
        tree[STAGED] = staged.dump()
    return tree


def server_tree(native_dir: Path) -> dict[str, bytes]:
    """Relative path -> content of the sources that a table host builds from."""
    tree = {"CMakeLists.txt": (native_dir / "CMakeLists.txt").read_bytes()}
    for room in ("transport", "table", "server", "tools"):
        for path in _sources(native_dir / room, (".h", ".cpp")):
            tree[f"{room}/{path.name}"] = path.read_bytes()
    return tree


def _sources(directory: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    found = sorted(path for path in directory.glob("*") if path.is_file() and path.suffix in suffixes)
    if not found:
        raise Dsv41Error(f"{directory} has no {' or '.join(suffixes)} files", hint="reinstall dsv41ctl")
    yield from found
