"""Finds what ships with the package: native/, overlays/ and configs/, in a checkout or in an installed wheel."""

from pathlib import Path

__all__ = ["configs", "native", "overlays"]

_PACKAGE = Path(__file__).resolve().parent


def _room(name: str) -> Path:
    # A wheel carries the rooms below dsv41ctl/_data; in a checkout they stand beside the package.
    shipped = _PACKAGE / "_data" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name


def native() -> Path:
    """The C++ sources."""
    return _room("native")


def overlays() -> Path:
    """sitecustomize, the remote helpers and the edit sets."""
    return _room("overlays")


def configs() -> Path:
    """The cluster files that ship."""
    return _room("configs")
