"""Hosts: run, put, get. Knows nothing of Engram."""

from dsv41ctl.hosts.command import Command, Piece, Secret, is_secret_name, masked, pair, real, shell, shown
from dsv41ctl.hosts.connect import open_host
from dsv41ctl.hosts.local import LocalHost
from dsv41ctl.hosts.parallel import gather, parallel, settle
from dsv41ctl.hosts.protocol import Completed, Host, OnLine, expand_home
from dsv41ctl.hosts.recording import RecordingHost

__all__ = [
    "Command",
    "Completed",
    "Host",
    "LocalHost",
    "OnLine",
    "Piece",
    "RecordingHost",
    "Secret",
    "expand_home",
    "gather",
    "is_secret_name",
    "masked",
    "open_host",
    "pair",
    "parallel",
    "real",
    "settle",
    "shell",
    "shown",
]
