"""A host over ssh: one connection, reused; both streams drained; a wall-clock limit on both ends."""

import threading
import time
from collections.abc import Mapping
from contextlib import suppress

import paramiko

from dsv41ctl.config.model import Connection
from dsv41ctl.errors import CommandTimeout, HostError, HostUnreachable
from dsv41ctl.hosts.base import ShellHost
from dsv41ctl.hosts.command import Command, shell, shown
from dsv41ctl.hosts.lines import LineSplitter
from dsv41ctl.hosts.parallel import interrupted
from dsv41ctl.hosts.protocol import Completed, OnLine
from dsv41ctl.hosts.sshconfig import SshTarget, resolve
from dsv41ctl.hosts.sshconnect import connect

__all__ = ["SshHost"]

_CHUNK = 1 << 15
_TICK_S = 0.2
# The far side ends the command at its limit; the near side waits this much longer before it gives up.
_LINK_GRACE_S = 5.0
_KILL_AFTER_S = 2
# coreutils' `timeout` ends with this status at its limit.
_TIMEOUT_STATUS = 124
_KILLED_STATUS = 137


class SshHost(ShellHost):
    """Runs commands over ssh. Connects at the first command; a lost connection is an error, then made anew.

    Args:
        name: as the cluster file calls it.
        connection: its entry in the cluster file.
        target: where it is, when that is already known.
    """

    def __init__(self, name: str, connection: Connection, target: SshTarget | None = None) -> None:
        super().__init__(name)
        self._connection = connection
        self._target = target
        self._client: paramiko.SSHClient | None = None
        self._home: str | None = None
        # Guards the two fields above: a host may be used by several threads.
        self._lock = threading.RLock()

    @property
    def home(self) -> str:
        """Home directory on the host, asked once."""
        with self._lock:
            if self._home is None:
                done = self._execute(("sh", "-c", "cd && pwd"), 30.0, {}, None, None)
                home = done.stdout.strip()
                if done.status != 0 or not home.startswith("/"):
                    raise HostError(f"cannot read the home directory: {done.stderr.strip()}", host=self.name)
                self._home = home
            return self._home

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = None

    def _transport(self) -> paramiko.Transport:
        with self._lock:
            transport = self._client.get_transport() if self._client else None
            if transport is None or not transport.is_active():
                self.close()
                if self._target is None:
                    self._target = resolve(self.name, self._connection)
                self._client = connect(self.name, self._target)
                transport = self._client.get_transport()
            if transport is None:
                raise HostUnreachable("the connection closed at once", host=self.name)
            return transport

    def _execute(
        self,
        command: Command,
        timeout: float,
        env: Mapping[str, str],
        stdin: bytes | None,
        on_line: OnLine | None,
    ) -> Completed:
        assignments = tuple(f"{name}={value}" for name, value in env.items())
        limited: Command = ("timeout", "-k", str(_KILL_AFTER_S), f"{timeout:g}", *command)
        # The inner shell turns a signal into 128 + n: ssh has no status for a command that a signal ended.
        line = shell(("env", "LANG=C.UTF-8", *assignments, "sh", "-c", '"$@"; exit $?', "dsv41ctl", *limited))
        begun = time.monotonic()
        try:
            channel = self._transport().open_session(timeout=10)
            channel.exec_command(line)
            done = _Exchange(channel, stdin, on_line).run(begun + timeout + _LINK_GRACE_S)
        except TimeoutError as error:
            self.close()
            raise CommandTimeout(f"`{shown(command)}` did not answer within {timeout:g} s", host=self.name) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            self.close()
            raise HostUnreachable(
                f"connection lost during `{shown(command)}`: {error or type(error).__name__}",
                host=self.name,
                hint="dsv41ctl status",
            ) from error
        spent = time.monotonic() - begun
        if done.status in (_TIMEOUT_STATUS, _KILLED_STATUS) and spent >= timeout:
            raise CommandTimeout(f"`{shown(command)}` did not end within {timeout:g} s", host=self.name)
        return done


class _Exchange:
    """One command on one channel. The caller's thread drains stdout; two more, joined here, do stderr and stdin."""

    def __init__(self, channel: paramiko.Channel, stdin: bytes | None, on_line: OnLine | None) -> None:
        self._channel = channel
        self._stdin = stdin or b""
        self._out = bytearray()
        self._err = bytearray()
        self._on_line = on_line

    def run(self, deadline: float) -> Completed:
        """Feeds, drains and waits.

        Raises:
            TimeoutError: the deadline passed.
            EOFError: the channel closed without an exit status.
        """
        self._channel.settimeout(_TICK_S)
        threads = [threading.Thread(target=work, daemon=True) for work in (self._drain_err, self._feed)]
        for thread in threads:
            thread.start()
        try:
            self._drain_out(deadline)
            while not self._channel.exit_status_ready():
                self._check(deadline)
                if self._channel.closed:
                    break
                time.sleep(0.01)
        finally:
            self._ended = True
            if not self._channel.exit_status_ready():
                self._channel.close()
            for thread in threads:
                thread.join()
            status = self._channel.recv_exit_status() if self._channel.exit_status_ready() else None
            self._channel.close()
        if status is None or status == -1:
            raise EOFError("it closed before the command ended")
        out = bytes(self._out)
        return Completed(status, out.decode("utf-8", "replace"), self._err.decode("utf-8", "replace"), out)

    _ended = False

    def _check(self, deadline: float) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        if time.monotonic() > deadline:
            raise TimeoutError

    def _drain_out(self, deadline: float) -> None:
        lines = LineSplitter(self._on_line)
        while True:
            self._check(deadline)
            try:
                chunk = self._channel.recv(_CHUNK)
            except TimeoutError:
                # A child that outlives the command may hold the stream open.
                if self._channel.exit_status_ready() and not self._channel.recv_ready():
                    break
                continue
            if not chunk:
                break
            self._out += chunk
            lines.feed(chunk)
        lines.finish()

    def _drain_err(self) -> None:
        lines = LineSplitter(self._on_line)
        while True:
            try:
                chunk = self._channel.recv_stderr(_CHUNK)
            except TimeoutError:
                if self._ended:
                    break
                continue
            except OSError:
                break
            if not chunk:
                break
            self._err += chunk
            lines.feed(chunk)
        lines.finish()

    def _feed(self) -> None:
        sent = 0
        with suppress(OSError, EOFError, paramiko.SSHException):
            while sent < len(self._stdin) and not self._ended:
                try:
                    sent += self._channel.send(self._stdin[sent : sent + _CHUNK])
                except TimeoutError:
                    continue
            self._channel.shutdown_write()
