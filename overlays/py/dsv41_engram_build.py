"""Builds the reader's native module with torch.utils.cpp_extension, and loads it.

The module's name hashes all that its binary depends on, so a later start only loads it. A build runs in a process and
a directory of its own; the finished file is moved into place whole, so a build that was killed leaves nothing that
another would wait for.
"""

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

__all__ = ["FLAGS", "load", "module_name", "sources"]

FLAGS = ("-O3", "-std=c++20", "-Wall", "-pthread")
_SPARK = Path(__file__).resolve().parents[1]
_BINDING = _SPARK / "engram_remote.cpp"
_INCLUDE = _SPARK.parents[1]
_ROOMS = ("transport", "reader")
# The seed's build takes about a minute; one that takes this long hangs.
_LIMIT_S = 1200
_SHOWN_LINES = 15


def sources() -> list[Path]:
    """The files that are compiled, the binding first.

    Raises:
        RuntimeError: the staged tree is not whole.
    """
    found = [_BINDING, *(path for room in _ROOMS for path in sorted((_INCLUDE / room).glob("*.cpp")))]
    if not _BINDING.exists() or len(found) < 1 + len(_ROOMS):
        raise RuntimeError(f"{_SPARK}: the reader's sources are missing (stage them: dsv41ctl stage)")
    return found


def _compiler() -> str:
    return os.environ.get("CXX") or "c++"


def _compiler_version() -> str:
    argv = [_compiler(), "--version"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    except OSError as error:
        raise RuntimeError(f"no C++ compiler: {argv[0]}: {error.strerror} (install g++, or set CXX)") from error
    return done.stdout.split("\n", 1)[0]


def module_name() -> str:
    """vllm_engram_remote_<12 hex digits> of the sources, flags, torch, Python and the compiler."""
    digest = hashlib.sha256()
    headers = [path for room in _ROOMS for path in sorted((_INCLUDE / room).glob("*.h"))]
    for path in (*sources(), *headers):
        data = path.read_bytes()
        digest.update(f"{path.name}:{len(data)}\n".encode())
        digest.update(data)
    facts = (
        *FLAGS,
        torch.__version__,
        str(torch._C._GLIBCXX_USE_CXX11_ABI),
        str(sys.implementation.cache_tag),
        platform.machine(),
        _compiler_version(),
    )
    digest.update("\n".join(facts).encode())
    return f"vllm_engram_remote_{digest.hexdigest()[:12]}"


def _extensions_dir() -> Path:
    given = os.environ.get("TORCH_EXTENSIONS_DIR")
    return Path(given) if given else Path.home() / ".cache" / "torch_extensions"


@contextlib.contextmanager
def _only_builder(directory: Path) -> Iterator[None]:
    """One build at a time for all processes; the kernel lets go of it when its holder dies."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "build.flock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(name: str, directory: Path) -> None:
    """Compiles into a fresh directory and moves the result into `directory`."""
    for left in directory.glob("build-*"):
        # We hold the lock, so whoever made it is dead.
        shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix="build-", dir=directory))
    try:
        # ninja may live beside the interpreter only.
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
        environment = {key: value for key, value in os.environ.items() if key != "DSV41_ENGRAM_OVERLAY"}
        argv = [sys.executable, str(Path(__file__).resolve()), name, str(work)]
        done = subprocess.run(
            argv,
            env={**environment, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=_LIMIT_S,
        )
        built = work / f"{name}.so"
        if done.returncode != 0 or not built.exists():
            raise RuntimeError(f"{name}: the build failed with status {done.returncode}:\n{_telling(done.stdout)}")
        with built.open("rb") as file:
            os.fsync(file.fileno())
        built.replace(directory / f"{name}.so")
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{name}: the build took longer than {_LIMIT_S} s and was ended") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _telling(output: str) -> str:
    """The lines from the first error on; the rest of a compiler's output hides it."""
    lines = output.strip().splitlines()
    for at, line in enumerate(lines):
        if "error" in line.lower():
            return "\n".join(lines[at : at + _SHOWN_LINES])
    return "\n".join(lines[-_SHOWN_LINES:])


def load() -> ModuleType:
    """The module; a second call gives the same one.

    Raises:
        RuntimeError: it cannot be built or loaded.
    """
    name = module_name()
    if name in sys.modules:
        return sys.modules[name]
    directory = _extensions_dir() / name
    file = directory / f"{name}.so"
    if not file.exists():
        with _only_builder(directory):
            # Another process may have built it while this one waited.
            if not file.exists():
                _build(name, directory)
    loader = importlib.machinery.ExtensionFileLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    if spec is None:
        raise RuntimeError(f"{file}: cannot be loaded")
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise RuntimeError(f"{file}: {error} (remove {directory} to build it anew)") from error
    sys.modules[name] = module
    return module


def _compile(name: str, work: str) -> None:
    """The build's own process."""
    from torch.utils import cpp_extension

    # Only compiled here: whoever asked loads the file from where it is moved to.
    cpp_extension.load(
        name=name,
        sources=[str(path) for path in sources()],
        extra_cflags=list(FLAGS),
        extra_ldflags=["-pthread"],
        extra_include_paths=[str(_INCLUDE)],
        build_directory=work,
        is_python_module=True,
        verbose=True,
    )


if __name__ == "__main__":
    _compile(sys.argv[1], sys.argv[2])
