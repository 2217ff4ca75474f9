"""`prebuild`: the reader's extension is compiled on every node before the model loads."""

import json
import posixpath
import re
import time
from dataclasses import dataclass

from dsv41ctl.apply.compiler import first_error
from dsv41ctl.apply.engine import Transaction, transaction
from dsv41ctl.apply.outcome import Outcome, StepResult
from dsv41ctl.apply.session import Session
from dsv41ctl.config import Cluster
from dsv41ctl.errors import CommandFailed, HostError
from dsv41ctl.hosts import Host, gather, masked, parallel, settle, shown
from dsv41ctl.plan import OVERLAY, STAGED, Word
from dsv41ctl.runtimes import PREBUILD_LIMIT_S

__all__ = ["Prebuilt", "prebuild", "prebuilt_problem"]

_RECORD = "dsv41ctl-prebuilt.json"
_ASK_S = 60.0
_PRINTED = re.compile(r"^(overlay|ext):\s+(\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Prebuilt:
    """What a node's last prebuild built, and from what.

    Attributes:
        staged: sha256 of the staged.json that it was built from.
        ext: path of the extension, as the host sees it.
    """

    staged: str
    ext: str
    ext_sha256: str

    def dump(self) -> bytes:
        """The record that lies on the node."""
        return (json.dumps({"staged": self.staged, "ext": self.ext, "ext_sha256": self.ext_sha256}) + "\n").encode()


def prebuild(session: Session, *, force: bool = False) -> Outcome:
    """Builds on all nodes at once; a second run finds everything built.

    Args:
        session: the run.
        force: build although a serve runs there.

    Raises:
        HostError: not staged, or a serve runs and `force` is not given.
        CommandFailed: the build failed; its first error is shown.
    """
    hosts = session.node_hosts
    with transaction(session) as running:
        if session.dry_run:
            for host in hosts:
                _would(session, running, host, force=force)
            return Outcome("prebuild", tuple(running.results))
        parallel(hosts, lambda host: _may_build(session, host, force=force))
        for result in settle(gather(hosts, lambda host: _build(session, host))).values():
            running.results.append(result)
    return Outcome("prebuild", tuple(running.results))


def prebuilt_problem(session: Session, host: Host) -> str | None:
    """Why a node cannot start B without compiling first; None when it can."""
    record = _record(session, host)
    if record is None:
        return "has no prebuilt extension"
    if record.staged != host.sha256_tree(session.cluster.paths.stage).get(STAGED):
        return "was staged anew since its extension was built"
    if _sha256(host, record.ext) != record.ext_sha256:
        return f"lacks the extension that was built, {record.ext}"
    return None


def _would(session: Session, running: Transaction, host: Host, *, force: bool) -> None:
    command = session.runtime.prebuild_command(session.node(host.name), host.home)
    word, detail = Word.WOULD, ""
    if not session.offline:
        problem = prebuilt_problem(session, host)
        # Building again is how a second run finds everything built: it changes nothing.
        word = Word.WOULD if problem else Word.UNCHANGED
        detail = problem or ""
        state = session.runtime.state(host, session.node(host.name))
        if state.running and not force:
            detail = "a serve runs: stop it first, or --force"
    result = StepResult(
        host.name, "build the reader's extension", word, 0.0, detail, shown(command), tuple(masked(command))
    )
    running.add(result)


def _may_build(session: Session, host: Host, *, force: bool) -> None:
    tree = host.sha256_tree(session.cluster.paths.stage)
    if STAGED not in tree or OVERLAY not in tree:
        raise HostError("nothing is staged", host=host.name, hint="dsv41ctl stage")
    state = session.runtime.state(host, session.node(host.name))
    if state.running and not force:
        raise HostError(
            f"a serve runs there (start {state.start_id}); building beside it takes memory that it may need",
            host=host.name,
            hint="dsv41ctl stop, or dsv41ctl prebuild --force",
        )


def _build(session: Session, host: Host) -> StepResult:
    node = session.node(host.name)
    command = session.runtime.prebuild_command(node, host.home)
    begun = time.monotonic()
    before = _record(session, host)
    done = session.runtime.prebuild(
        host, node, timeout=PREBUILD_LIMIT_S, on_line=lambda text: session.line(host.name, text)
    )
    if done.status != 0:
        output = f"{done.stdout}\n{done.stderr}"
        error = CommandFailed(
            masked(command), done.status, first_error(output), host=host.name, hint="fix it, then dsv41ctl prebuild"
        )
        failed = StepResult(
            host.name, "build the reader's extension", Word.WOULD, time.monotonic() - begun, command=shown(command)
        )
        session.journal.step(failed, error=str(error))
        raise error
    printed = dict(_PRINTED.findall(done.stdout))
    built = _check(session, host, printed)
    # The same bytes before and after: it was only loaded.
    changed = before is None or before.ext != built.ext or before.ext_sha256 != built.ext_sha256
    if before != built:
        host.put(built.dump(), f"{session.cluster.paths.cache}/{_RECORD}")
    result = StepResult(
        host=host.name,
        title="build the reader's extension",
        word=Word.CHANGED if changed else Word.UNCHANGED,
        seconds=time.monotonic() - begun,
        detail=f"overlay: {printed['overlay']}\next: {printed['ext']}",
        command=shown(command),
        argv=tuple(masked(command)),
    )
    session.report(result)
    return result


def _check(session: Session, host: Host, printed: dict[str, str]) -> Prebuilt:
    cluster = session.cluster
    wanted = _inside(cluster, host, OVERLAY)
    if printed.get("overlay") != wanted:
        raise HostError(
            f"the engram module came from {printed.get('overlay', 'nowhere')}, not from the staged {wanted}",
            host=host.name,
            hint="dsv41ctl stage",
        )
    if "ext" not in printed:
        raise HostError("the prebuild printed no `ext: PATH`", host=host.name)
    ext = _outside(cluster, host, printed["ext"])
    digest = _sha256(host, ext)
    if digest is None:
        raise HostError(f"the extension {ext} is not there after the prebuild", host=host.name)
    staged = host.sha256_tree(cluster.paths.stage).get(STAGED, "")
    return Prebuilt(staged, ext, digest)


def _inside(cluster: Cluster, host: Host, path: str) -> str:
    root = cluster.paths.stage_in_container
    return f"{host.expand(root) if root.startswith('~') else root}/{path}"


def _outside(cluster: Cluster, host: Host, path: str) -> str:
    """A path of the container's cache as the host sees it."""
    inside = host.expand(cluster.paths.cache_in_container)
    if path.startswith(f"{inside}/"):
        return posixpath.join(host.expand(cluster.paths.cache), path[len(inside) + 1 :])
    return path


def _record(session: Session, host: Host) -> Prebuilt | None:
    path = f"{session.cluster.paths.cache}/{_RECORD}"
    if not host.exists(path):
        return None
    try:
        document = json.loads(host.get(path))
        return Prebuilt(str(document["staged"]), str(document["ext"]), str(document["ext_sha256"]))
    except (ValueError, KeyError, TypeError):
        return None


def _sha256(host: Host, path: str) -> str | None:
    done = host.run(("sha256sum", "-z", "--", path), timeout=_ASK_S, check=False)
    return done.stdout.split(maxsplit=1)[0] if done.status == 0 else None
