"""The journal: one JSON line a step, on the operator's machine. Written as it happens; closed with a verdict."""

import getpass
import json
import os
import threading
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from platformdirs import user_state_dir

from dsv41ctl import __version__
from dsv41ctl.apply.outcome import StepResult
from dsv41ctl.errors import Dsv41Error
from dsv41ctl.jsontypes import Json

__all__ = ["Journal", "JournalHeader", "list_journals", "operator", "read_journal", "state_directory"]

STATE_VARIABLE = "DSV41_STATE_DIR"


def state_directory() -> Path:
    """Where the operator's machine keeps state: $DSV41_STATE_DIR, or the user's state directory."""
    own = os.environ.get(STATE_VARIABLE)
    return Path(own).expanduser() if own else Path(user_state_dir("dsv41ctl"))


def operator() -> str:
    """Who runs this."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Journal:
    """One run's journal. Without a path it keeps nothing: a dry run leaves no trace.

    Args:
        path: the file; made with its directories.
        verb: what is run.
        cluster: the cluster's name.
    """

    def __init__(self, path: Path | None, verb: str, cluster: str) -> None:
        self.path = path
        self._file: TextIO | None = None
        # Steps of several hosts end in threads of their own.
        self._lock = threading.Lock()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("x", encoding="utf-8")
            self._write(record="run", verb=verb, cluster=cluster, version=__version__, user=operator(), started=_now())

    @classmethod
    def open(cls, verb: str, cluster: str, *, directory: Path | None = None, keep: bool = True) -> "Journal":
        """A journal under the state directory.

        Args:
            verb: what is run.
            cluster: the cluster's name.
            directory: instead of the state directory.
            keep: False for a dry run.

        Raises:
            Dsv41Error: the state directory cannot be written.
        """
        if not keep:
            return cls(None, verb, cluster)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        name = f"{stamp}-{verb.replace(' ', '-')}-{uuid.uuid4().hex[:6]}.jsonl"
        path = (directory or state_directory()) / "journal" / name
        try:
            return cls(path, verb, cluster)
        except OSError as error:
            raise Dsv41Error(
                f"cannot write the journal {path}: {error.strerror}", hint=f"export {STATE_VARIABLE}=DIRECTORY"
            ) from error

    def step(self, result: StepResult, *, error: str | None = None, undo: bool = False) -> None:
        """Records one step."""
        self._write(record="undo" if undo else "step", at=_now(), error=error, **result.as_json())

    def note(self, text: str, **fields: Json) -> None:
        """Records anything else."""
        self._write(record="note", at=_now(), text=text, **fields)

    def close(self, verdict: str) -> None:
        """Ends the journal; later calls do nothing."""
        self._write(record="end", at=_now(), verdict=verdict)
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    def _write(self, **record: Json) -> None:
        with self._lock:
            if self._file is None:
                return
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
            # A run that is killed must not lose what it did.
            self._file.flush()


@dataclass(frozen=True)
class JournalHeader:
    """One run in the list.

    Attributes:
        verdict: None: the run did not end, or was killed.
    """

    path: Path
    verb: str
    cluster: str
    version: str
    user: str
    started: str
    verdict: str | None


def read_journal(path: Path) -> list[dict[str, Json]]:
    """All records. A last line that was cut short is left out."""
    records: list[dict[str, Json]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def list_journals(directory: Path | None = None) -> list[JournalHeader]:
    """All runs, oldest first."""
    found: list[JournalHeader] = []
    for path in sorted(((directory or state_directory()) / "journal").glob("*.jsonl")):
        records = read_journal(path)
        if not records or records[0].get("record") != "run":
            continue
        head, last = records[0], records[-1]
        verdict = last.get("verdict") if last.get("record") == "end" else None
        found.append(
            JournalHeader(
                path=path,
                verb=str(head.get("verb")),
                cluster=str(head.get("cluster")),
                version=str(head.get("version")),
                user=str(head.get("user")),
                started=str(head.get("started")),
                verdict=None if verdict is None else str(verdict),
            )
        )
    return found
