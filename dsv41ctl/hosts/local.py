"""A host that is a directory of this machine: commands run here, with that directory as their home."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from dsv41ctl.errors import CommandTimeout, HostError
from dsv41ctl.hosts.base import ShellHost
from dsv41ctl.hosts.command import Command, real, shown
from dsv41ctl.hosts.lines import LineSplitter
from dsv41ctl.hosts.parallel import interrupted
from dsv41ctl.hosts.protocol import Completed, OnLine

__all__ = ["LocalHost"]

_TICK_S = 0.2
_GRACE_S = 2.0
_CHUNK = 1 << 16


class LocalHost(ShellHost):
    """Runs commands on this machine with a clean environment (PATH, LANG, HOME).

    Args:
        name: as the cluster file calls it.
        home: the directory that stands for the host's home; made when missing.
    """

    def __init__(self, name: str, home: str) -> None:
        super().__init__(name)
        self._home = str(Path(home).expanduser().absolute())

    @property
    def home(self) -> str:
        """Home directory of this host."""
        return self._home

    def _execute(
        self,
        command: Command,
        timeout: float,
        env: Mapping[str, str],
        stdin: bytes | None,
        on_line: OnLine | None,
    ) -> Completed:
        Path(self._home).mkdir(parents=True, exist_ok=True)
        try:
            process = subprocess.Popen(
                real(command),
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._home,
                env=self._environment(env),
                # A group of its own: the limit ends its children too, and Ctrl-C reaches us alone.
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise HostError(f"command not found: `{shown(command)}`", host=self.name) from error
        except (OSError, ValueError) as error:
            raise HostError(f"cannot start `{shown(command)}`: {error}", host=self.name) from error
        try:
            out, err = self._communicate(process, command, timeout, stdin or b"", on_line)
        except BaseException:
            _end_group(process)
            raise
        return Completed(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), out)

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        base = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": self._home}
        return base | dict(env)

    def _communicate(
        self,
        process: subprocess.Popen[bytes],
        command: Command,
        timeout: float,
        stdin: bytes,
        on_line: OnLine | None,
    ) -> tuple[bytes, bytes]:
        """Feeds and drains all three pipes at once, watching the limit and the interrupt flag."""
        deadline = time.monotonic() + timeout
        with _Pipes(process, stdin, on_line) as pipes:
            while True:
                ended = process.poll() is not None
                # Once the command has ended, only what is already in the pipes is taken: a child
                # that it left behind may keep them open for ever.
                got = pipes.step(0.0 if ended else _TICK_S)
                if ended and not got:
                    return pipes.finish()
                if interrupted.is_set():
                    raise KeyboardInterrupt
                if time.monotonic() > deadline:
                    raise CommandTimeout(f"`{shown(command)}` did not end within {timeout:g} s", host=self.name)


class _Pipes:
    """The three pipes of a running command."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes, on_line: OnLine | None) -> None:
        self._selector = selectors.DefaultSelector()
        self._all: list[IO[bytes]] = []
        self._buffers: dict[str, bytearray] = {}
        self._splitters: dict[str, LineSplitter] = {}
        self._pending = memoryview(stdin)
        for name, pipe in (("out", process.stdout), ("err", process.stderr)):
            self._buffers[name] = bytearray()
            self._splitters[name] = LineSplitter(on_line)
            if pipe is not None:
                self._all.append(pipe)
                self._selector.register(pipe, selectors.EVENT_READ, name)
        if process.stdin is not None:
            self._all.append(process.stdin)
            os.set_blocking(process.stdin.fileno(), False)
            self._selector.register(process.stdin, selectors.EVENT_WRITE, "in")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for pipe in self._all:
            with suppress(OSError):
                pipe.close()

    def step(self, wait: float) -> bool:
        """Moves what can be moved; whether any output came."""
        if not self._selector.get_map():
            time.sleep(min(wait, 0.01))
            return False
        got = False
        for key, _ in self._selector.select(wait):
            if key.data == "in":
                self._feed(key.fd)
                continue
            chunk = os.read(key.fd, _CHUNK)
            if chunk:
                got = True
                self._buffers[key.data] += chunk
                self._splitters[key.data].feed(chunk)
            else:
                self._selector.unregister(key.fd)
        return got

    def finish(self) -> tuple[bytes, bytes]:
        """Everything that came on stdout and stderr."""
        for splitter in self._splitters.values():
            splitter.finish()
        return bytes(self._buffers["out"]), bytes(self._buffers["err"])

    def _feed(self, fd: int) -> None:
        try:
            written = os.write(fd, self._pending[:_CHUNK]) if self._pending else 0
        except BlockingIOError:
            return
        except BrokenPipeError:
            # The command does not read its input; its status says whether that matters.
            written = len(self._pending)
        self._pending = self._pending[written:]
        if not self._pending:
            self._selector.unregister(fd)
            for pipe in self._all:
                if pipe.fileno() == fd:
                    pipe.close()
                    self._all.remove(pipe)
                    break


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            if sign is signal.SIGKILL:
                break
            # Its children may ignore SIGTERM although it did not.
