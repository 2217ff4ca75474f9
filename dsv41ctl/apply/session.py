"""A session: one run of one verb over one cluster, its hosts and its journal."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from dsv41ctl import __version__
from dsv41ctl.apply.journal import Journal, operator
from dsv41ctl.apply.outcome import StepResult
from dsv41ctl.config import Cluster
from dsv41ctl.config.model import Node, TableHost
from dsv41ctl.errors import Dsv41Error
from dsv41ctl.hosts import Host, gather, open_host
from dsv41ctl.plan import Word
from dsv41ctl.runtimes import Runtime, runtime_for

__all__ = ["AUDIT_LOG", "Session", "open_session"]

AUDIT_LOG = "dsv41ctl-audit.log"
_AUDIT_S = 30.0

Progress = Callable[[StepResult], None]
Line = Callable[[str, str], None]


class Session:
    """What the verbs work on.

    Args:
        cluster: the cluster file.
        verb: what is run, for journal and audit log.
        dry_run: plan and show, change nothing.
        offline: open nothing; implies dry_run.
        journal: where steps are recorded.
        progress: told of each step as it ends.
        line: told of each line of output of long commands, with the host's name.
        hosts: hosts by name, instead of those of the cluster file.
        runtime: instead of the cluster file's.
    """

    def __init__(
        self,
        cluster: Cluster,
        verb: str,
        *,
        dry_run: bool = False,
        offline: bool = False,
        journal: Journal,
        progress: Progress | None = None,
        line: Line | None = None,
        hosts: dict[str, Host] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.cluster = cluster
        self.verb = verb
        self.dry_run = dry_run or offline
        self.offline = offline
        self.journal = journal
        self.runtime = runtime or runtime_for(cluster)
        self._progress = progress
        self._line = line
        self._changed: dict[str, int] = {}
        # Guards the counters and keeps the listeners' lines apart: steps end in one thread a host.
        self._lock = threading.Lock()
        self.hosts = hosts or {
            name: open_host(name, connection, offline=offline)
            for name, connection in (
                *((node.name, node.connection) for node in cluster.nodes),
                *((entry.name, entry.connection) for entry in cluster.table_hosts),
            )
        }

    def node_host(self, node: Node) -> Host:
        """The host of a node."""
        return self.hosts[node.name]

    def table_host(self, table_host: TableHost) -> Host:
        """The host of a table server."""
        return self.hosts[table_host.name]

    @property
    def node_hosts(self) -> list[Host]:
        """All nodes' hosts, in rank order."""
        return [self.hosts[node.name] for node in self.cluster.by_rank]

    @property
    def table_hosts(self) -> list[Host]:
        """All table hosts."""
        return [self.hosts[entry.name] for entry in self.cluster.table_hosts]

    def node(self, name: str) -> Node:
        """A node by name."""
        return next(node for node in self.cluster.nodes if node.name == name)

    def table_entry(self, name: str) -> TableHost:
        """A table host's entry by name."""
        return next(entry for entry in self.cluster.table_hosts if entry.name == name)

    def report(self, result: StepResult, *, undo: bool = False) -> None:
        """Journals a step and tells the listener."""
        self.journal.step(result, undo=undo)
        with self._lock:
            if result.word is Word.CHANGED:
                self._changed[result.host] = self._changed.get(result.host, 0) + 1
            if self._progress is not None:
                self._progress(result)

    def line(self, host: str, text: str) -> None:
        """Passes on a line of a long command's output."""
        with self._lock:
            if self._line is not None:
                self._line(host, text)

    def audit(self, verdict: str) -> None:
        """Appends a line on every host that was changed. Never fails: the work is done already."""
        if self.dry_run or not self._changed:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        who = f"{operator()}@{socket.gethostname()}"
        directories = {node.name: self.cluster.paths.cache for node in self.cluster.nodes}
        directories |= {entry.name: entry.root for entry in self.cluster.table_hosts}

        def append(host: Host) -> None:
            directory = host.expand(directories[host.name])
            text = f"{now} {who} {self.verb}: {self._changed[host.name]} changed, {verdict} (dsv41ctl {__version__})"
            script = 'mkdir -p -- "$1" && printf "%s\\n" "$2" >>"$1/$3"'
            host.run(("sh", "-c", script, "dsv41ctl", directory, text, AUDIT_LOG), timeout=_AUDIT_S)

        results = gather([host for name, host in self.hosts.items() if name in self._changed], append)
        for name, result in results.items():
            if isinstance(result, Exception):
                self.journal.note(f"audit line not written on {name}: {result}")

    def close(self) -> None:
        """Lets go of all connections."""
        for host in self.hosts.values():
            host.close()


@contextmanager
def open_session(
    cluster: Cluster,
    verb: str,
    *,
    dry_run: bool = False,
    offline: bool = False,
    progress: Progress | None = None,
    line: Line | None = None,
    state_dir: Path | None = None,
    hosts: dict[str, Host] | None = None,
    runtime: Runtime | None = None,
) -> Iterator[Session]:
    """A session whose journal is closed with `done`, `failed: ...` or `interrupted`, however it ends."""
    keep = not (dry_run or offline)
    journal = Journal.open(verb, cluster.name, directory=state_dir, keep=keep)
    session = Session(
        cluster, verb, dry_run=dry_run, offline=offline, journal=journal, progress=progress, line=line,
        hosts=hosts, runtime=runtime,
    )  # fmt: skip
    verdict = "done"
    try:
        yield session
    except KeyboardInterrupt:
        verdict = "interrupted"
        raise
    except BaseException as error:
        verdict = f"failed: {error if isinstance(error, Dsv41Error) else repr(error)}"
        raise
    finally:
        try:
            session.audit(verdict)
        finally:
            journal.close(verdict)
            session.close()
