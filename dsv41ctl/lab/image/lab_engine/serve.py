"""Entry point of one rank: `python -m lab_engine.serve --rank R --tp N ...`."""

import argparse
import hashlib
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

# Before torch: the same kernels whatever the alignment of a buffer, one thread, one order of additions.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import uvicorn
from starlette.applications import Starlette

from lab_engine import __version__
from lab_engine.api import Limits
from lab_engine.app import make_app
from lab_engine.engine import Engine
from lab_engine.group import Group, PeerLostError
from lab_engine.metrics import Metrics
from lab_engine.worker import Worker, follow

# A serve that is stopped loses its peers too: SIGTERM is given this long to arrive before a lost peer is an error.
_GRACE_S = 0.75
_STOP_S = 1.5


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lab_engine.serve", allow_abbrev=False)
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("LAB_MODEL_DIR"))
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-batched-tokens", type=int, default=4096)
    parser.add_argument("--disk-threads", type=int, default=4)
    parser.add_argument("--noise-above", type=int, metavar="N", help="random logits on top from position N on")
    parser.add_argument("--served-model-name", default="lab")
    parser.add_argument("--join-timeout-s", type=float, default=120.0)
    parser.add_argument("--step-timeout-s", type=float, default=30.0)
    options = parser.parse_args()
    if options.model_dir is None:
        parser.error("--model-dir is needed (or LAB_MODEL_DIR)")
    if not 0 <= options.rank < options.tp:
        parser.error(f"--rank {options.rank} is not below --tp {options.tp}")
    if options.max_batched_tokens < 1:
        parser.error("--max-batched-tokens must be at least 1")
    return options


def _fingerprint(options: argparse.Namespace) -> str:
    index = (options.model_dir / "model.safetensors.index.json").read_bytes()
    config = (options.model_dir / "config.json").read_bytes()
    settings = json.dumps([options.tp, options.max_batched_tokens, torch.__version__]).encode()
    return f"lab-{__version__}-{hashlib.sha256(config + index + settings).hexdigest()[:8]}"


class Rank:
    """One rank. The main thread waits for signals; a second one computes; on rank 0 a third one serves HTTP."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._ended = threading.Event()
        self._terminated = threading.Event()
        self._problem: str | None = None
        self._engine: Engine | None = None
        self._worker: Worker | None = None

    def run(self) -> int:
        """Runs until SIGTERM or a failure, and returns the exit status."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        bound = self._bind() if self._options.rank == 0 else None
        thread = threading.Thread(target=self._compute, args=(bound,), name="engine", daemon=True)
        thread.start()
        self._ended.wait()
        if not self._terminated.is_set():
            self._terminated.wait(_GRACE_S)
        if self._terminated.is_set():
            if self._engine is not None:
                self._engine.stop()
            # A rank that waits for a broadcast cannot be woken; its process may end all the same.
            thread.join(_STOP_S if self._options.rank == 0 else 0.2)
            self._close()
            self._say("stopped")
            return 0
        self._say(self._problem or "rank 0 ended the serve")
        return 1

    def _on_signal(self, *_: object) -> None:
        self._terminated.set()
        self._ended.set()

    def _bind(self) -> socket.socket:
        # Before the slow part, so that a port in use fails at once; nobody is let in before listen().
        family = socket.AF_INET6 if ":" in self._options.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((self._options.host, self._options.port))
        except OSError as error:
            self._fail(f"cannot bind {self._options.host}:{self._options.port}: {error.strerror}")
        return bound

    def _fail(self, problem: str) -> NoReturn:
        self._say(problem)
        sys.exit(1)

    def _say(self, text: str) -> None:
        print(f"lab_engine: rank {self._options.rank}/{self._options.tp}: {text}", flush=True)

    def _compute(self, bound: socket.socket | None) -> None:
        options = self._options
        try:
            torch.set_num_threads(1)
            torch.set_grad_enabled(False)
            self._say(f"meets {options.tp} ranks at {options.master_addr}:{options.master_port}")
            group = Group(
                options.rank,
                options.tp,
                options.master_addr,
                options.master_port,
                options.join_timeout_s,
                options.step_timeout_s,
            )
            self._worker = worker = Worker(group, options.model_dir, options.max_batched_tokens, options.disk_threads)
            group.barrier()
            if bound is not None:
                self._lead(worker, bound)
            else:
                follow(worker, self._terminated.is_set)
        except PeerLostError as error:
            self._problem = str(error)
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"
        finally:
            self._ended.set()

    def _lead(self, worker: Worker, bound: socket.socket) -> None:
        options = self._options
        metrics = Metrics(options.served_model_name, worker.geometry.layer_ids, options.tp)
        self._engine = engine = Engine(worker, metrics, options.noise_above)
        limits = Limits(options.served_model_name, worker.model.shape.max_len)
        app = make_app(engine, metrics, limits, _fingerprint(options), int(time.time()))
        threading.Thread(target=self._http, args=(app, bound), name="http", daemon=True).start()
        self._say(f"all {options.tp} ranks are up, serving http://{options.host}:{options.port}")
        engine.run()

    def _http(self, app: Starlette, bound: socket.socket) -> None:
        bound.listen(128)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        # Signals belong to the main thread.
        server.run(sockets=[bound])
        self._ended.set()

    def _close(self) -> None:
        if self._worker is not None:
            closing = threading.Thread(target=self._worker.close, daemon=True)
            closing.start()
            closing.join(0.75)


def main() -> None:
    """Runs one rank; leaves without waiting for threads that hang in a collective."""
    status = Rank(_arguments()).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
