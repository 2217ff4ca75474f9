"""How a serve is run on a host."""

from dsv41ctl.config import Cluster
from dsv41ctl.runtimes.docker import DockerRuntime
from dsv41ctl.runtimes.process import ProcessRuntime
from dsv41ctl.runtimes.protocol import PREBUILD_LIMIT_S, Runtime, ServeState

__all__ = ["PREBUILD_LIMIT_S", "DockerRuntime", "ProcessRuntime", "Runtime", "ServeState", "runtime_for"]


def runtime_for(cluster: Cluster) -> Runtime:
    """The runtime that the cluster file names."""
    return DockerRuntime(cluster) if cluster.serve.runtime == "docker" else ProcessRuntime(cluster)
