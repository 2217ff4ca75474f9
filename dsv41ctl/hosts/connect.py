"""Chooses the way to a host from its entry in the cluster file."""

from dsv41ctl.config.model import Connection
from dsv41ctl.hosts.local import LocalHost
from dsv41ctl.hosts.protocol import Host
from dsv41ctl.hosts.recording import RecordingHost

__all__ = ["open_host"]


def open_host(name: str, connection: Connection, *, offline: bool = False) -> Host:
    """The host of that name. Nothing is connected before the first command.

    Args:
        name: as the cluster file calls it.
        connection: its `connection` there.
        offline: a host that records and answers nothing.
    """
    if offline:
        return RecordingHost(name)
    if connection.home is not None:
        return LocalHost(name, connection.home)
    # paramiko takes a moment to import, and the lab does without.
    from dsv41ctl.hosts.ssh import SshHost  # noqa: PLC0415

    return SshHost(name, connection)
