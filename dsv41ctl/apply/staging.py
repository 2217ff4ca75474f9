"""`stage`: the overlay and the reader onto every node, read back whole."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from dsv41ctl import assets
from dsv41ctl.apply.engine import Transaction, plain, transaction
from dsv41ctl.apply.outcome import Outcome
from dsv41ctl.apply.session import Session
from dsv41ctl.config import Cluster
from dsv41ctl.errors import CheckFailed, ConfigError, HostError, MixedState, UsageError
from dsv41ctl.hosts import Host, parallel
from dsv41ctl.overlay import Rendered, load_edit_set, render
from dsv41ctl.plan import (
    MANIFEST,
    OVERLAY,
    STAGED,
    Nothing,
    PutFile,
    Step,
    Word,
    plan_purge,
    plan_stage,
    stage_tree,
)

__all__ = ["stage"]

_CACHE = "/__pycache__/"


@dataclass(frozen=True)
class _Desired:
    """What every node should hold, and what of it is not known yet."""

    files: dict[str, bytes]
    pending: dict[str, str]
    overlay: Rendered | None


def stage(session: Session, *, purge: bool = False) -> Outcome:
    """Makes every node's staged tree what it should be; the serve may keep running.

    Args:
        session: the run.
        purge: remove the staged tree instead.

    Raises:
        CheckFailed: the image's file is not one that the edit set knows.
        MixedState: nodes have different images.
        HostError: a node failed; what was staged in this run has been taken back.
    """
    if purge:
        return _purge(session)
    desired = _desired(session)
    hosts = session.node_hosts
    observed = {} if session.offline else parallel(hosts, lambda host: host.sha256_tree(session.cluster.paths.stage))
    steps: list[Step] = []
    for host in hosts:
        planned = plan_stage(session.cluster, host.name, desired.files, observed.get(host.name), desired.pending)
        steps += [_with_diff(step, desired.overlay) for step in planned]
    with transaction(session) as running:
        if desired.overlay is not None:
            _report_image(session, running, desired.overlay)
        running.apply(steps)
        if not session.dry_run and any(step.state is not Word.UNCHANGED for step in steps):
            parallel(hosts, lambda host: _read_back(session, host, desired.files))
    return Outcome("stage", tuple(running.results))


def _desired(session: Session) -> _Desired:
    cluster = session.cluster
    pending: dict[str, str] = {}
    manifest = _manifest(session, pending)
    overlay = None
    if session.offline:
        named = cluster.image.edit_set or "none named yet; dsv41ctl overlay derive"
        pending[OVERLAY] = f"would render from the image's file {cluster.image.engram_path} (edit set: {named})"
        pending[STAGED] = "would name the sha256 of every staged file, the overlay's and the image's"
    else:
        overlay = _render(session)
    files = stage_tree(cluster, assets.native(), assets.overlays(), overlay, manifest)
    return _Desired(files, pending, overlay)


def _manifest(session: Session, pending: dict[str, str]) -> bytes | None:
    """The manifest on the operator's machine, checked to be one."""
    path = session.cluster.tables.manifest
    if path is None:
        if session.offline:
            pending[MANIFEST] = "would put the manifest of the tables (tables.manifest names none)"
            return None
        raise ConfigError("the cluster file names no tables.manifest", hint="dsv41ctl tables manifest --help")
    file = Path(path).expanduser()
    if session.offline and not file.is_file():
        pending[MANIFEST] = f"would put {path}, which is not there yet"
        return None
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"tables.manifest {path}: {error.strerror}", hint="dsv41ctl tables manifest --help") from error
    return data


def _render(session: Session) -> Rendered:
    """The overlay, from the file that every node's image holds."""
    cluster = session.cluster
    name = cluster.image.edit_set
    if name is None:
        raise ConfigError(
            f"the cluster file names no image.edit_set for {cluster.image.reference}", hint="dsv41ctl overlay derive"
        )
    edit_set = load_edit_set(name)
    files = parallel(session.node_hosts, session.runtime.image_file)
    digests = {host: hashlib.sha256(data).hexdigest() for host, data in files.items()}
    if len(set(digests.values())) > 1:
        listed = ", ".join(f"{host} {digest[:16]}" for host, digest in digests.items())
        raise MixedState(f"nodes have different images: engram.py is {listed}", hint="pull the same image on all nodes")
    digest = next(iter(digests.values()))
    _same_as_named(cluster, digest)
    return render(next(iter(files.values())), edit_set)


def _same_as_named(cluster: Cluster, digest: str) -> None:
    """Compares with image.engram_sha256, which may be shortened in the middle."""
    wanted = cluster.image.engram_sha256
    if wanted is None:
        return
    start, _, end = wanted.partition("…")
    if not (digest.startswith(start) and digest.endswith(end)):
        raise CheckFailed(
            f"the image's engram.py has sha256 {digest}, the cluster file names {wanted}",
            hint="dsv41ctl overlay derive",
        )


def _report_image(session: Session, running: Transaction, overlay: Rendered) -> None:
    for host in session.node_hosts:
        title = f"image's engram.py sha256 {overlay.image_sha256}"
        running.add(plain(Step(host.name, title, Nothing(), None, Word.UNCHANGED, f"edit set {overlay.edit_set}")))


def _with_diff(step: Step, overlay: Rendered | None) -> Step:
    """The overlay's diff goes with the step that puts it."""
    if overlay is not None and isinstance(step.action, PutFile) and step.action.path.endswith(f"/{OVERLAY}"):
        return replace(step, detail=overlay.diff)
    return step


def _read_back(session: Session, host: Host, files: dict[str, bytes]) -> None:
    seen = host.sha256_tree(session.cluster.paths.stage)
    wanted = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    wrong = sorted(path for path, digest in wanted.items() if seen.get(path) != digest)
    strays = sorted(path for path in seen if path not in wanted and _CACHE not in path)
    if wrong or strays:
        raise HostError(
            f"the staged tree reads back otherwise: {', '.join(wrong + strays)}", host=host.name, hint="dsv41ctl stage"
        )


def _purge(session: Session) -> Outcome:
    """Removes staged trees, where no serve of B reads them."""
    hosts = session.node_hosts
    observed = {} if session.offline else parallel(hosts, lambda host: host.sha256_tree(session.cluster.paths.stage))
    if not session.dry_run:
        parallel(hosts, lambda host: _refuse_purge(session, host))
    steps = [step for host in hosts for step in plan_purge(session.cluster, host.name, observed.get(host.name))]
    with transaction(session) as running:
        running.apply(steps)
    return Outcome("stage --purge", tuple(running.results))


def _refuse_purge(session: Session, host: Host) -> None:
    state = session.runtime.state(host, session.node(host.name))
    if state.running and "DSV41_ENGRAM_OVERLAY" in (state.environment or {}):
        raise HostError(
            "the serve runs configuration B from the staged tree", host=host.name, hint="dsv41ctl start --arm A"
        )
