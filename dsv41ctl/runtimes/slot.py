"""The far side of the process runtime: one serve in one directory. Runs on the node, with the standard library alone.

    slot.py start DIR    reads {"start_id", "started_at", "argv", "env", "cwd"} from stdin
    slot.py state DIR
    slot.py stop DIR SECONDS
    slot.py logs DIR

Each prints one JSON object (logs: the output of the current start). The serve outlives us: a keeper process in a
session of its own starts it, waits for it and writes its exit status.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_KEPT_LOGS = 5
_TICK_S = 0.05
_KILL_WAIT_S = 10.0
_BUSY = 3


def main(argv: list[str]) -> int:
    """Runs one verb."""
    verb, directory = argv[0], Path(argv[1])
    if verb == "logs":
        _logs(directory)
        return 0
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        if verb == "start":
            return _start(directory, json.load(sys.stdin))
        if verb == "stop":
            return _stop(directory, float(argv[2]))
    return _say(_state(directory))


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    # Two operators at once: the second waits here.
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _say(document: object, status: int = 0) -> int:
    sys.stdout.write(json.dumps(document) + "\n")
    return status


def _read(path: Path) -> dict[str, object] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(path: Path, document: object) -> None:
    temporary = path.with_name(path.name + ".partial")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State letter, process group and start time of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses of its own.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[2]), int(fields[19])


def _alive(pid: int, ticks: int) -> bool:
    """Whether a pid is still the process that was started, and no zombie."""
    seen = _stat(pid)
    return seen is not None and seen[0] not in "ZX" and seen[2] == ticks


def _group(pgid: int) -> list[int]:
    """Live members of a process group."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            seen = _stat(int(entry.name))
            if seen is not None and seen[1] == pgid and seen[0] not in "ZX":
                members.append(int(entry.name))
    return members


def _bytes_list(path: str) -> list[str]:
    try:
        data = Path(path).read_bytes()
    except OSError:
        return []
    return [word.decode("utf-8", "surrogateescape") for word in data.split(b"\0") if word]


def _state(directory: Path) -> dict[str, object]:
    started = _read(directory / "start.json") or {}
    process = _read(directory / "pid")
    if process is None:
        return {"running": False, "exists": False}
    pid, ticks = int(str(process["pid"])), int(str(process["ticks"]))
    running = _alive(pid, ticks)
    ended = _read(directory / "exit.json") or {}
    own = ended.get("start_id") == started.get("start_id")
    environment = dict(entry.partition("=")[::2] for entry in _bytes_list(f"/proc/{pid}/environ")) if running else None
    return {
        "running": running,
        "exists": True,
        "start_id": started.get("start_id"),
        "started_at": started.get("started_at"),
        "pid": pid,
        "argv": _bytes_list(f"/proc/{pid}/cmdline") if running else started.get("argv"),
        "environment": environment,
        "exit_status": ended.get("status") if not running and own else None,
    }


def _log(directory: Path, start_id: object) -> Path:
    return directory / f"log-{start_id}.txt"


def _logs(directory: Path) -> None:
    started = _read(directory / "start.json")
    if started is None:
        return
    with contextlib.suppress(OSError), _log(directory, started["start_id"]).open("rb") as file:
        while chunk := file.read(1 << 20):
            sys.stdout.buffer.write(chunk)


def _start(directory: Path, wanted: dict[str, object]) -> int:
    state = _state(directory)
    if state["running"]:
        return _say({"problem": f"already running with pid {state['pid']}", **state}, _BUSY)
    for name in ("pid", "exit.json"):
        (directory / name).unlink(missing_ok=True)
    logs = sorted(directory.glob("log-*.txt"), key=lambda path: path.stat().st_mtime)
    for old in logs[: max(0, len(logs) - _KEPT_LOGS + 1)]:
        old.unlink(missing_ok=True)
    _write(directory / "start.json", wanted)
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.close(read_end)
        _keep(directory, wanted, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "r", encoding="utf-8") as answer:
        problem = answer.read()
    if problem:
        return _say({"problem": problem, "running": False, "exists": False}, 1)
    return _say(_state(directory))


def _keep(directory: Path, wanted: dict[str, object], answer: int) -> None:
    """The keeper: starts the serve, tells how that went, waits for its end. Never returns."""
    try:
        os.setsid()
        # Above all the lock: it would stay held for as long as the serve lives.
        os.closerange(3, answer)
        os.closerange(answer + 1, 1024)
        argv, env = wanted["argv"], wanted["env"]
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        base = {name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}
        with _log(directory, wanted["start_id"]).open("ab") as log:
            process = subprocess.Popen(
                argv,  # type: ignore[call-overload]
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=wanted["cwd"],
                env={**base, **env},  # type: ignore[dict-item]
                start_new_session=True,
            )
        seen = _stat(process.pid)
        _write(directory / "pid", {"pid": process.pid, "ticks": seen[2] if seen else -1})
        os.close(answer)
    except BaseException as error:
        os.write(answer, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    status = process.wait()
    _write(directory / "exit.json", {"start_id": wanted["start_id"], "status": status, "ended_at": time.time()})
    os._exit(0)


def _stop(directory: Path, limit: float) -> int:
    state = _state(directory)
    process = _read(directory / "pid")
    if process is None:
        return _say({"stopped": False, **state})
    pid = int(str(process["pid"]))
    # The leader's start time proves that the group is ours; a group whose leader is gone keeps its number
    # reserved for as long as it has members, but another process may have taken the pid: then hands off.
    seen = _stat(pid)
    ours = seen is None or seen[2] == int(str(process["ticks"]))
    killed = False
    if ours and _group(pid):
        _signal(pid, signal.SIGTERM)
        if not _gone(pid, limit):
            killed = True
            _signal(pid, signal.SIGKILL)
            if not _gone(pid, _KILL_WAIT_S):
                return _say({"problem": f"processes {_group(pid)} do not end", **_state(directory)}, 1)
    (directory / "pid").unlink(missing_ok=True)
    return _say({"stopped": True, "killed": killed, **_state(directory)})


def _signal(pgid: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pgid, sign)


def _gone(pgid: int, limit: float) -> bool:
    deadline = time.monotonic() + limit
    while _group(pgid):
        if time.monotonic() > deadline:
            return False
        time.sleep(_TICK_S)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
