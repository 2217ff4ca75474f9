"""Summaries on disk, and the list of past runs."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41ctl.apply import JournalHeader
from dsv41ctl.jsontypes import Json
from dsv41ctl.rollout.gates import Summary

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["history_json", "history_table", "run_name", "write_summary"]


def run_name(cluster: str) -> str:
    """A new directory's name: cluster, UTC time, process."""
    return f"{cluster}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"


def write_summary(summary: Summary, *paths: Path | None) -> None:
    """Writes the summary whole to each path."""
    data = json.dumps(summary.as_json(), indent=2, ensure_ascii=False) + "\n"
    for path in paths:
        if path is None:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".partial")
        temporary.write_text(data, encoding="utf-8")
        temporary.replace(path)


def history_json(journals: Sequence[JournalHeader]) -> list[Json]:
    """The document of `history --json`."""
    return [
        {
            "started": journal.started,
            "verb": journal.verb,
            "cluster": journal.cluster,
            "user": journal.user,
            "version": journal.version,
            "verdict": journal.verdict,
            "journal": str(journal.path),
        }
        for journal in journals
    ]


def history_table(journals: Sequence[JournalHeader]) -> "Table":
    """One line a run, oldest first."""
    from rich.table import Table

    table = Table(title="runs")
    for column in ("started", "verb", "cluster", "user", "verdict"):
        table.add_column(column, overflow="fold")
    for journal in journals:
        table.add_row(journal.started, journal.verb, journal.cluster, journal.user, journal.verdict or "unfinished")
    return table
