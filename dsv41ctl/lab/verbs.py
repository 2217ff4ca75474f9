"""The lab brought up and taken down: its checkpoint, its image, its hosts' homes, its processes."""

import shutil
from collections.abc import Callable
from pathlib import Path

from dsv41ctl.apply import Session, server_stop, status, stop
from dsv41ctl.config import Cluster
from dsv41ctl.config.model import Lab, Node, TableHost
from dsv41ctl.errors import Dsv41Error, UsageError
from dsv41ctl.lab.checkpoint import install_image, prepare_model
from dsv41ctl.lab.layout import LabLayout
from dsv41ctl.rollout.gates import Tracker

__all__ = ["down", "ensure_up", "layout_of", "up"]

# A root that holds this file was made by `lab up`; nothing else is ever purged.
_MARK = ".dsv41ctl-lab"


def layout_of(cluster: Cluster) -> LabLayout:
    """Where the lab of a cluster file lies.

    Raises:
        UsageError: the cluster is no lab.
    """
    return LabLayout(Path(_lab(cluster).root).expanduser())


def up(cluster: Cluster, say: Callable[[str], None]) -> bool:
    """Makes checkpoint, image and homes. Idempotent.

    Returns:
        Whether anything changed.
    """
    lab = _lab(cluster)
    layout = layout_of(cluster)
    layout.root.mkdir(parents=True, exist_ok=True)
    (layout.root / _MARK).touch()
    hosts: list[Node | TableHost] = [*cluster.nodes, *cluster.table_hosts]
    for host in hosts:
        home = host.connection.home
        if host.connection.kind != "local" or home is None:
            raise UsageError(f"host {host.name} of a lab must be of kind local", hint="see configs/lab.toml")
        Path(home).expanduser().mkdir(parents=True, exist_ok=True)
    say("the lab's checkpoint")
    changed = prepare_model(layout.model, lab.vocab_size, lab.seed)
    say("the lab's image")
    return install_image(layout.image) or changed


def ensure_up(session: Session, tracker: Tracker, say: Callable[[str], None]) -> None:
    """The gate `lab up`."""
    with tracker.gate("lab up") as gate:
        changed = up(session.cluster, say)
        layout = layout_of(session.cluster)
        gate.passed(f"{'made' if changed else 'reused'} {layout.root}", changed=changed)


def down(session: Session, *, purge: bool = False) -> str:
    """Stops the serve and the table server, reads back that they are gone, and with `purge` removes the root.

    Raises:
        Dsv41Error: something still runs.
    """
    layout = layout_of(session.cluster)
    stop(session)
    server_stop(session)
    left = status(session)
    alive = [node.node for node in left.nodes if node.state is not None and node.state.running]
    alive += [server.host for server in left.servers if server.running]
    if alive:
        raise Dsv41Error(f"still running on {', '.join(alive)}", hint="dsv41ctl status")
    if not purge:
        return "stopped"
    if not (layout.root / _MARK).exists():
        raise Dsv41Error(f"{layout.root} was not made by `lab up`; not removed")
    shutil.rmtree(layout.root)
    return f"stopped; {layout.root} removed"


def _lab(cluster: Cluster) -> Lab:
    if cluster.lab is None:
        raise UsageError(f"cluster {cluster.name} is no lab", hint="dsv41ctl --cluster configs/lab.toml lab up")
    return cluster.lab
