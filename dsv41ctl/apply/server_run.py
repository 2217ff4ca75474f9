"""`server start`, `stop`, `logs`: the table server's life on its host."""

import hashlib
import json
import time
from pathlib import Path

from dsv41ctl.apply.engine import Transaction, plain, transaction
from dsv41ctl.apply.observe import ServerState, server_state
from dsv41ctl.apply.outcome import Outcome
from dsv41ctl.apply.serverproc import server_process
from dsv41ctl.apply.session import Session
from dsv41ctl.config.model import TableHost
from dsv41ctl.errors import CheckFailed, ConfigError, Dsv41Error, HostError, UsageError
from dsv41ctl.hosts import Command, Host, parallel, real
from dsv41ctl.plan import (
    STOP_LIMIT_S,
    Nothing,
    PutFile,
    RunCommand,
    Step,
    Word,
    server_argv,
    server_binary,
    server_paths,
    server_stop_command,
)

__all__ = ["server_logs", "server_start", "server_stop"]

_ASK_S = 30.0
_STOP_S = STOP_LIMIT_S + 15.0
_POLL_S = 0.2
_TAIL_LINES = 12
_MAKE_MANIFEST = "dsv41ctl tables manifest --help"
# The server's word for "a table does not match its manifest".
_REFUSED_STATUS = 3
# $1 run directory, $2 log, $3 exit file, then the argument vector. The log of the last run is kept beside.
_LAUNCH = """set -eu
run=$1; log=$2; ended=$3; shift 3
mkdir -p -- "$run"; rm -f -- "$ended"
[ ! -e "$log" ] || mv -f -- "$log" "$log.1"
setsid sh -c 'log=$1; ended=$2; shift 2; "$@" >>"$log" 2>&1 </dev/null; echo $? >"$ended"' \
  dsv41-engram "$log" "$ended" "$@" >/dev/null 2>&1 </dev/null &
"""


def server_start(session: Session) -> Outcome:
    """Starts every table server and waits until its tables are verified.

    Raises:
        CheckFailed: a table does not match its manifest.
        HostError: not built, port in use, or running with other arguments.
    """
    hosts = session.table_hosts
    with transaction(session) as running:
        if session.offline:
            for host in hosts:
                running.apply(_steps(session, host, _manifest(session, host)))
            return Outcome("server start", tuple(running.results))
        parallel(hosts, lambda host: _start_one(session, running, host))
    return Outcome("server start", tuple(running.results))


def _start_one(session: Session, running: Transaction, host: Host) -> None:
    entry = session.table_entry(host.name)
    manifest = _manifest(session, host)
    process = server_process(host, entry)
    record = _record(session, host, manifest)
    if process is not None:
        _refuse_other(host, entry, list(process.argv), record)
        state = _wait_ready(session, host) if not session.dry_run else server_state(host, entry)
        title = f"engram_server runs with pid {process.pid}"
        detail = _summary(state)
        running.add(plain(Step(host.name, title, Nothing(), None, Word.UNCHANGED, detail)))
        return
    if not session.dry_run:
        binary = server_binary(entry, host.home)
        if not host.exists(binary):
            raise HostError(f"{binary} is not there", host=host.name, hint="dsv41ctl server build")
        key = entry.key_file
        if key is not None and not host.exists(key):
            raise HostError(f"the key file {key} is not there", host=host.name)
    running.apply(_steps(session, host, manifest))
    if not session.dry_run:
        _wait_ready(session, host)
        host.put(json.dumps(record).encode() + b"\n", server_paths(entry, host.home).start)


def _steps(session: Session, host: Host, manifest: bytes | None) -> list[Step]:
    entry = session.table_entry(host.name)
    paths = server_paths(entry, host.home)
    steps: list[Step] = []
    if entry.manifest is None:
        title = f"put the manifest to {paths.manifest}"
        if manifest is None:
            steps.append(
                Step(host.name, title, Nothing(), None, Word.WOULD, "tables.manifest names none that is there")
            )
        else:
            steps.append(Step(host.name, title, PutFile(paths.manifest, manifest)))
    argv = server_argv(entry, host.home)
    if session.dry_run:
        steps.append(Step(host.name, "start engram_server", RunCommand(argv)))
        return steps
    launch: Command = ("sh", "-c", _LAUNCH, "dsv41ctl", paths.run, paths.log, paths.exit, *argv)
    # Not left half up: the next start begins from nothing.
    undo = RunCommand(server_stop_command(entry, host.home, launched=True), _STOP_S)
    steps.append(Step(host.name, "start engram_server", RunCommand(launch, _ASK_S), undo))
    return steps


def _manifest(session: Session, host: Host) -> bytes | None:
    """The operator's manifest, or None where the table host has its own or nobody may look."""
    if session.table_entry(host.name).manifest is not None:
        return None
    path = session.cluster.tables.manifest
    if path is not None and (Path(path).expanduser().is_file() or not session.offline):
        try:
            return Path(path).expanduser().read_bytes()
        except OSError as error:
            raise UsageError(
                f"tables.manifest {path}: {error.strerror}", hint="dsv41ctl tables manifest --help"
            ) from error
    if session.offline:
        return None
    raise ConfigError(
        "the cluster file names neither tables.manifest nor table_hosts.manifest",
        hint="dsv41ctl tables manifest --help",
    )


def _record(session: Session, host: Host, manifest: bytes | None) -> dict[str, object]:
    """What a start is made of: the same record, the same server."""
    entry = session.table_entry(host.name)
    argv = server_argv(entry, host.home)
    binary = real(argv)[0]
    digest = hashlib.sha256(manifest).hexdigest() if manifest is not None else _sha256(host, real(argv)[3])
    return {"argv": real(argv), "manifest": digest, "binary": _sha256(host, binary)}


def _sha256(host: Host, path: str) -> str | None:
    done = host.run(("sha256sum", "-z", "--", path), timeout=_ASK_S, check=False)
    return done.stdout.split(maxsplit=1)[0] if done.status == 0 else None


def _refuse_other(host: Host, entry: TableHost, argv: list[str], record: dict[str, object]) -> None:
    """A server that runs otherwise is not restarted behind the operator's back: B's readers would fall back."""
    paths = server_paths(entry, host.home)
    differs = None
    wanted = real(server_argv(entry, host.home))
    # By its end: a binary that is a script shows its interpreter first.
    if argv[-len(wanted) :] != wanted:
        differs = "other arguments"
    elif host.exists(paths.start):
        try:
            before = json.loads(host.get(paths.start))
        except ValueError:
            before = {}
        if before.get("manifest") != record["manifest"]:
            differs = "another manifest"
        elif before.get("binary") != record["binary"]:
            differs = "another build of engram_server"
    if differs:
        raise HostError(
            f"engram_server runs with {differs}", host=host.name, hint="dsv41ctl server stop && dsv41ctl server start"
        )


def _wait_ready(session: Session, host: Host) -> ServerState:
    """Waits until all tables are verified; shows how far loading is."""
    entry = session.table_entry(host.name)
    deadline = time.monotonic() + entry.ready_timeout_s
    # Between launch and pid file there is a moment without either.
    patience = time.monotonic() + 2.0
    shown = ""
    while True:
        state = server_state(host, entry)
        if state.status is not None and state.status.ready:
            session.line(host.name, _summary(state))
            return state
        ended = _exit_status(host, entry)
        if ended is not None or (state.running is False and time.monotonic() > patience):
            raise _why(host, entry, ended)
        text = _summary(state)
        if state.status is not None and text != shown:
            session.line(host.name, text)
            shown = text
        if time.monotonic() > deadline:
            raise HostError(
                f"engram_server is not ready after {entry.ready_timeout_s:g} s: {text or state.problem}\n"
                f"{_tail(host, entry)}",
                host=host.name,
                hint="dsv41ctl server logs",
            )
        time.sleep(_POLL_S)


def _exit_status(host: Host, entry: TableHost) -> int | None:
    path = server_paths(entry, host.home).exit
    done = host.run(("cat", "--", path), timeout=_ASK_S, check=False)
    text = done.stdout.strip()
    return int(text) if done.status == 0 and text.isdigit() else None


def _why(host: Host, entry: TableHost, status: int | None) -> Dsv41Error:
    """The log's own reason."""
    lines = _tail(host, entry).splitlines()
    reason = lines[-1] if lines else "its log is empty"
    text = f"engram_server ended with status {status}: {reason.rpartition('engram_server: ')[2]}"
    if status == _REFUSED_STATUS:
        return CheckFailed(text, host=host.name, hint="dsv41ctl server logs")
    return HostError(text, host=host.name, hint="dsv41ctl server logs")


def _tail(host: Host, entry: TableHost, lines: int = _TAIL_LINES) -> str:
    path = server_paths(entry, host.home).log
    done = host.run(("tail", "-n", str(lines), "--", path), timeout=_ASK_S, check=False)
    return done.stdout.strip() if done.status == 0 else ""


def _summary(state: ServerState) -> str:
    if state.status is None:
        return state.problem or ""
    tables = (
        f"layer {table.layer} {'verified' if table.verified else f'{table.progress:.0%}'}"
        for table in state.status.tables
    )
    return f"{'ready' if state.status.ready else 'loading'}: {', '.join(tables)}"


def server_stop(session: Session) -> Outcome:
    """Stops every table server, and reads back that it is gone.

    Raises:
        HostError: it does not end.
    """
    hosts = session.table_hosts
    with transaction(session) as running:
        planned = (
            {host.name: _stop_step(session, host, "") for host in hosts}
            if session.offline
            else parallel(hosts, lambda host: _observe_and_stop(session, host))
        )
        running.apply(planned.values())
        if not session.dry_run:
            parallel(hosts, lambda host: _gone(session, host))
    return Outcome("server stop", tuple(running.results))


def _observe_and_stop(session: Session, host: Host) -> Step:
    process = server_process(host, session.table_entry(host.name))
    if process is None:
        return Step(host.name, "stop engram_server", Nothing(), None, Word.UNCHANGED, "it does not run")
    return _stop_step(session, host, f"pid {process.pid}")


def _stop_step(session: Session, host: Host, detail: str) -> Step:
    command = server_stop_command(session.table_entry(host.name), host.home)
    return Step(host.name, "stop engram_server", RunCommand(command, _STOP_S), detail=detail)


def _gone(session: Session, host: Host) -> None:
    process = server_process(host, session.table_entry(host.name))
    if process is not None:
        raise HostError(
            f"engram_server still runs with pid {process.pid}", host=host.name, hint=f"kill -KILL {process.pid}"
        )


def server_logs(session: Session, lines: int = 200) -> dict[str, str]:
    """The end of each table server's log.

    Raises:
        HostError: a host cannot be read.
    """
    return parallel(session.table_hosts, lambda host: _tail(host, session.table_entry(host.name), lines))
