"""A small cluster of directories: a tiny serve, a stand-in for engram_server, real hosts and a real overlay."""

import hashlib
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dsv41ctl import assets
from dsv41ctl.apply import Session, StepResult, open_session, server_stop, stop
from dsv41ctl.config import Cluster
from dsv41ctl.hosts import Host
from dsv41ctl.overlay import EditSet
from dsv41ctl.overlay.editset import parse

ENGRAM = "MODE = 'image'\n"
EDITS = """
module = "tiny.engram"
image_sha256 = ["{sha256}"]
[[edit]]
name = "remote"
anchor = "MODE = 'image'"
replacement = '''MODE = 'overlay'  # DSV41-OFFLOAD
def _load_engram_remote_ext():  # DSV41-OFFLOAD
    import pathlib, os, types
    path = pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"]) / "vllm_engram_remote_0123456789ab" / "ext.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.environ.get("BREAK_BUILD"):
        raise SystemExit("engram_remote.cpp:1:1: error: expected unqualified-id")
    if not path.exists():
        print("compiling", flush=True)
        path.write_bytes(os.urandom(64))
    return types.SimpleNamespace(__file__=str(path))'''
"""
SITECUSTOMIZE = """
import os, sys
if os.environ.get("DSV41_ENGRAM_OVERLAY"):
    import importlib.util
    spec = importlib.util.spec_from_file_location("tiny.engram", os.environ["DSV41_ENGRAM_OVERLAY"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["tiny.engram"] = module
"""
SERVE = """
import http.server, os, pathlib, sys, time
rank, port = int(sys.argv[1]), int(sys.argv[2])
import tiny.engram as e
module = sys.modules["tiny.engram"]
print("rank", rank, "engram module", module.__file__, module.MODE, flush=True)
if os.environ.get("DIE_RANK") == str(rank):
    print("the reason of the death", flush=True)
    sys.exit(9)
if rank > 0 or os.environ.get("NEVER_READY"):
    while True:
        time.sleep(0.1)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
SERVER = """#!{python}
import json, os, pathlib, signal, sys, time
argv = sys.argv[1:]
value = lambda name: argv[argv.index(name) + 1]
control = pathlib.Path(value("--control"))
if argv[0] == "status":
    if not control.exists():
        sys.exit("engram_server: no server on " + str(control))
    print(control.read_text())
    sys.exit(0)
print("engram_server: starting", file=sys.stderr, flush=True)
if "--fail" in argv:
    print("engram_server: " + value("--fail"), file=sys.stderr, flush=True)
    sys.exit(int(value("--status")))
pid = pathlib.Path(value("--pid-file"))
if "--slow-pid" in argv:
    time.sleep(1)
pid.write_text(str(os.getpid()))
def end(*_):
    control.unlink(missing_ok=True); pid.unlink(missing_ok=True); sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "--stubborn" in argv else end)
listen = [argv[i + 1] for i, word in enumerate(argv) if word == "--listen"]
for progress in (0.0, 0.5, 1.0):
    ready = progress == 1.0 and "--never-ready" not in argv
    table = dict(layer=1, rows=10, bytes=2640, verified=ready, identity="a" * 64, progress=progress, load_s=0.1)
    document = dict(schema=1, ready=ready, version="0.1", protocol=1, pid=os.getpid(), started_at=0, uptime_s=1.0,
        rss_bytes=1, huge_bytes=0, huge_share=0.0, tables=[table], listeners=listen, connections=0,
        opens=dict(current=0, total=0), lookups=0, rows=0, bytes=0, refusals=dict(total=0, by_code={{}}),
        gather_us=dict(count=0, p50=0.0, p99=0.0, mean=0.0, max=0.0), sessions=[])
    temporary = control.with_name("c.partial"); temporary.write_text(json.dumps(document)); temporary.replace(control)
    time.sleep(0.3)
while True:
    time.sleep(0.05)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Tiny:
    """The cluster, and ways to open sessions on it."""

    root: Path
    cluster: Cluster
    steps: list[StepResult] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def home(self, name: str) -> Path:
        return self.root / "hosts" / name

    def staged(self, name: str) -> Path:
        return self.home(name) / ".cache/dsv41-serve/dsv41-offload"

    def changed(self, part: str, **changes: object) -> None:
        """Changes one part of the cluster file."""
        value = getattr(self.cluster, part)
        new = (
            [entry.model_copy(update=changes) for entry in value]
            if isinstance(value, list)
            else value.model_copy(update=changes)
        )
        self.cluster = self.cluster.model_copy(update={part: new})

    def run(self, verb: Callable[..., object], *args: object, hosts: dict[str, Host] | None = None, **kwargs: object):
        """One verb in a session of its own."""
        options = {name: kwargs.pop(name) for name in ("dry_run", "offline") if name in kwargs}
        with open_session(
            self.cluster, getattr(verb, "__name__", "verb"), progress=self.steps.append,
            line=lambda host, text: self.lines.append(f"{host}|{text}"), hosts=hosts, **options,  # type: ignore[arg-type]
        ) as session:  # fmt: skip
            return verb(session, *args, **kwargs)

    def words(self) -> list[tuple[str, str, str]]:
        return [(step.host, step.title, step.word.value) for step in self.steps]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSV41_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path) -> Iterator[Tiny]:
    root = tmp_path / "lab"
    for name, text in {
        "image/tiny/__init__.py": "", "image/tiny/engram.py": ENGRAM, "image/tiny/serve.py": SERVE,
        "model/manifest.json": '{"schema": 1}',
        "native/CMakeLists.txt": "project(x)", "native/transport/ofl.h": "//", "native/transport/ofl_server.h": "//",
        "native/reader/engram_remote.cpp": "//", "native/reader/remote_table.h": "//", "native/table/table.h": "//",
        "native/server/main.cpp": "//", "native/tools/engram_check.cpp": "//",
        "overlays/py/sitecustomize.py": SITECUSTOMIZE, "overlays/tools/verify_rows.py": "pass\n",
    }.items():  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    server = root / "bin" / "engram_server"
    server.parent.mkdir()
    server.write_text(SERVER.format(python=sys.executable))
    server.chmod(0o755)
    monkeypatch.setattr(assets, "native", lambda: root / "native")
    monkeypatch.setattr(assets, "overlays", lambda: root / "overlays")
    sha256 = hashlib.sha256(ENGRAM.encode()).hexdigest()

    def load(name: str) -> EditSet:
        return parse(name, EDITS.replace("{sha256}", sha256), source="edits.toml")

    monkeypatch.setattr("dsv41ctl.apply.staging.load_edit_set", load)
    port, listen = free_port(), [f"127.0.0.1:{free_port()}" for _ in range(2)]
    node = {"link": {"scheme": "tcp", "local": "127.0.0.1"}}
    document = {
        "name": "tiny",
        "lab": {"root": str(root)},
        "tables": {"model_dir": str(root / "model"), "manifest": str(root / "model/manifest.json")},
        "image": {"reference": "tiny", "module": "tiny.engram", "engram_path": "tiny/engram.py", "edit_set": "tiny"},
        "paths": {"cache": "~/.cache/dsv41-serve", "cache_in_container": "~/.cache/dsv41-serve"},
        "serve": {
            "runtime": "process", "url": f"http://127.0.0.1:{port}", "port": port, "ready_timeout_s": 20,
            "stop_timeout_s": 3, "command": ["-m", "tiny.serve", "{rank}", "{port}"],
        },
        "nodes": [
            {
                "name": name, "rank": rank, "connection": {"kind": "local", "home": str(root / "hosts" / name)},
                "link": {**node["link"], "listener": listen[rank]},
            }
            for rank, name in enumerate(("n0", "n1"))
        ],
        "table_hosts": [
            {
                "name": "t0", "connection": {"kind": "local", "home": str(root / "hosts" / "t0")}, "binary": str(server),
                "model_dir": str(root / "model"), "listeners": listen, "root": "~/o", "ready_timeout_s": 15,
            }
        ],
    }  # fmt: skip
    made = Tiny(root, Cluster.model_validate(document))
    yield made
    # Whatever a test left up, by the product's own verbs.
    if (made.home("n0") / "run").exists() or (made.home("n1") / "run").exists():
        made.changed("serve", stop_timeout_s=1.0)
        made.run(stop)
    if (made.home("t0") / "o/run").exists():
        made.run(server_stop)


class Failing:
    """A host that fails at its nth change; everything else goes to the real one."""

    def __init__(self, host: Host, at: int, error: BaseException) -> None:
        self._host = host
        self._left = at
        self._error = error
        self.changes: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._host, name)

    def _count(self, what: str) -> None:
        if self._left == 0:
            self._left = -1
            raise self._error
        self._left -= 1
        self.changes.append(what)

    def put(self, data: bytes, path: str, mode: int = 0o644) -> None:
        self._count(f"put {path}")
        self._host.put(data, path, mode)

    def remove_file(self, path: str) -> None:
        self._count(f"remove {path}")
        self._host.remove_file(path)


@pytest.fixture
def failing(tiny: Tiny) -> Callable[[str, int, BaseException], dict[str, Host]]:
    """All hosts of the cluster, one of which fails at its nth change."""

    def make(name: str, at: int, error: BaseException) -> dict[str, Host]:
        from dsv41ctl.hosts import open_host

        entries = [*tiny.cluster.nodes, *tiny.cluster.table_hosts]
        hosts = {entry.name: open_host(entry.name, entry.connection) for entry in entries}
        hosts[name] = Failing(hosts[name], at, error)  # type: ignore[assignment]
        return hosts

    return make


__all__ = ["Session"]
