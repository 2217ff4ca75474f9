"""The cluster file: models, defaults and validation. No I/O but reading the one file."""

from dsv41ctl.config.load import load_cluster
from dsv41ctl.config.model import Cluster

__all__ = ["Cluster", "load_cluster"]
