"""Puts the staged overlay in place of the image's engram module, in every Python process that sees this directory.

Python imports this file at start because the directory is on PYTHONPATH. Without DSV41_ENGRAM_OVERLAY it does nothing
but hand over to the sitecustomize that it hides, if there is one.
"""

import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_VARIABLE = "DSV41_ENGRAM_OVERLAY"
_HEADER = re.compile(r"^# DSV41-OFFLOAD module: (\S+)$")
_HEADER_LINES = 5
# A process that would serve A in the name of B must not start.
_EXIT_STATUS = 78


def _fail(problem: str) -> None:
    """Ends the process: an exception here would be printed by site and then passed over."""
    print(f"engram_remote: {_VARIABLE}: {problem} (stage it: dsv41ctl stage)", file=sys.stderr, flush=True)
    os._exit(_EXIT_STATUS)


def _module_of(overlay: str) -> str:
    """The module that the overlay's header names."""
    try:
        with open(overlay, encoding="utf-8") as file:
            for _ in range(_HEADER_LINES):
                found = _HEADER.match(file.readline().rstrip("\n"))
                if found:
                    return found[1]
    except (OSError, UnicodeDecodeError) as error:
        _fail(f"{overlay}: {getattr(error, 'strerror', None) or error}")
    _fail(f"{overlay}: no line `# DSV41-OFFLOAD module: NAME` at its top")
    raise AssertionError


class _OverlayLoader(importlib.machinery.SourceFileLoader):
    """Runs the overlay under the image module's name; says once which file it took the place of."""

    def __init__(self, name: str, overlay: str, image: str) -> None:
        super().__init__(name, overlay)
        self._image = image

    def exec_module(self, module: ModuleType) -> None:
        """The image's own file stays known, for what lies beside it."""
        module.__dsv41_image_file__ = self._image  # type: ignore[attr-defined]
        print(f"engram_remote: overlay {self.path} in place of {self._image}", file=sys.stderr, flush=True)
        super().exec_module(module)

    def set_data(self, path: str, data: "ReadableBuffer", *, _mode: int = 0o666) -> None:
        """Keeps no bytecode: the staged tree holds what was staged and nothing else."""


class _OverlayFinder(MetaPathFinder):
    """Answers for one module and leaves all others alone."""

    def __init__(self, name: str, overlay: str) -> None:
        self._name = name
        self._overlay = overlay
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The overlay's spec; an image without the module stays without it."""
        if fullname != self._name or self._looking:
            return None
        self._looking = True
        try:
            original = _find_with_others(fullname, path, target)
        finally:
            self._looking = False
        if original is None or original.origin is None:
            return None
        loader: Loader = _OverlayLoader(fullname, self._overlay, original.origin)
        return importlib.util.spec_from_file_location(fullname, self._overlay, loader=loader)


def _find_with_others(
    name: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, path, target) if find is not None else None
        if spec is not None:
            return spec  # type: ignore[no-any-return]
    return None


def _hidden_sitecustomize() -> None:
    """Runs the sitecustomize that would have been imported without this directory."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    ours = sys.modules["sitecustomize"]
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules["sitecustomize"] = ours
        raise


def _install() -> None:
    overlay = os.environ.get(_VARIABLE)
    if overlay:
        sys.meta_path.insert(0, _OverlayFinder(_module_of(overlay), overlay))
    _hidden_sitecustomize()


_install()
