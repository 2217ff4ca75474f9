"""Pydantic models of the cluster file. Every default is the seed runbook's unless its comment says otherwise."""

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

__all__ = [
    "Ab",
    "Bench",
    "Cluster",
    "Connection",
    "Image",
    "Lab",
    "Link",
    "Node",
    "Paths",
    "Remote",
    "Serve",
    "TableHost",
    "Tables",
    "Verify",
]

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=63)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
# The seed prints its image's sha256 shortened; such a name can be shown but never matched.
Sha256OrShort = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8,64}(…[0-9a-f]{4,})?$")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Seconds = Annotated[float, Field(gt=0, le=86400)]

_LISTENER = re.compile(r"^(?:\[(?P<v6>[^\]]+)\]|(?P<v4>[^:]+)):(?P<port>\d+)$")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Connection(_Model):
    """How a host is reached.

    Attributes:
        kind: `ssh`, or `local` for a host of the lab that lives on this machine.
        address: ssh host (default: the host's name, so that ~/.ssh/config applies).
        home: `local` only: the home directory that stands for the host's.
    """

    kind: Literal["ssh", "local"] = "ssh"
    address: str | None = None
    user: str | None = None
    port: int | None = Field(default=None, ge=1, le=65535)
    identity_file: str | None = None
    home: str | None = None

    @model_validator(mode="after")
    def _home_fits(self) -> Self:
        if (self.kind == "local") != (self.home is not None):
            raise ValueError('`home` belongs to kind = "local", and is needed there')
        return self


class Link(_Model):
    """A rank's own way to a table host.

    Attributes:
        scheme: `rdma`, or `tcp` for debugging.
        listener: ADDRESS:PORT of the table server's end.
        local: the node's own address on this link; with rdma the GID is found by it.
        device: pinned RDMA device, e.g. `rocep1s0f0`; unset: the one that has the address.
    """

    scheme: Literal["rdma", "tcp"] = "rdma"
    listener: str
    local: str
    device: str | None = None
    gid_index: int | None = Field(default=None, ge=0, le=65535)
    mtu: Literal[256, 512, 1024, 2048, 4096] | None = None

    @model_validator(mode="after")
    def _addresses(self) -> Self:
        parse_listener(self.listener)
        ipaddress.ip_address(self.local)
        return self

    @property
    def url(self) -> str:
        """The entry for this rank in VLLM_ENGRAM_REMOTE."""
        local = f"[{self.local}]" if ":" in self.local else self.local
        return f"{self.scheme}://{self.listener}@{local}"


class Node(_Model):
    """A host that runs one rank of the serve."""

    name: Name
    rank: int = Field(ge=0)
    connection: Connection = Connection()
    link: Link


class TableHost(_Model):
    """A host that holds tables in RAM and runs engram_server.

    Attributes:
        root: directory on the host for sources, build and binaries.
        model_dir: where the shards (or packed files) lie on this host.
        listeners: the exact addresses to bind.
        binary: `engram_server`, or a path.
        extra_args: further arguments of `engram_server serve`.
    """

    name: Name
    connection: Connection = Connection()
    root: str = "~/dsv41-offload"
    model_dir: str
    manifest: str | None = None
    listeners: list[str] = Field(min_length=1)
    layers: list[int] | None = None
    threads: int = Field(default=8, ge=1, le=256)
    max_rows: int = Field(default=65536, ge=1, le=1 << 20)
    key_file: str | None = None
    huge_pages: bool = True
    binary: str = "engram_server"
    extra_args: list[str] = []
    ready_timeout_s: Seconds = 600.0

    @model_validator(mode="after")
    def _listeners(self) -> Self:
        for listener in self.listeners:
            host, _ = parse_listener(listener)
            if ipaddress.ip_address(host).is_unspecified:
                raise ValueError(f"listener {listener} is a wildcard address; name the link's own address")
        return self


class Tables(_Model):
    """The Engram tables.

    Attributes:
        model_dir: where the checkpoint lies on each node, as the serve sees it.
        manifest: the manifest file on the operator's machine.
        identities: layer -> identity, when the cluster file pins them.
        staging_rows: rows of one staging buffer: the largest prefill chunk x heads of a rank (seed: 49152).
    """

    layers: list[int] = Field(default=[1, 14], min_length=1)
    model_dir: str
    manifest: str | None = None
    identities: dict[int, str] = {}
    staging_rows: int = Field(default=49152, ge=1)


class Image(_Model):
    """What serves: a container image, or the lab's image directory.

    Attributes:
        reference: image name for docker; for `process` the lab's own image.
        module: the Python module that holds the Engram layer.
        engram_sha256: sha256 of the image's engram.py.
        edit_set: name of the edit set in overlays/editsets.
    """

    reference: str
    module: str = "vllm.models.deepseek_v41.common.engram"
    engram_path: str = "/usr/local/lib/python3.12/dist-packages/vllm/models/deepseek_v41/common/engram.py"
    engram_sha256: Sha256OrShort | None = None
    edit_set: Name | None = None


class Paths(_Model):
    """Directories on a node, and the same seen from inside the container."""

    cache: str = "~/.cache/dsv41-serve"
    cache_in_container: str = "/root/.cache"
    stage_name: Name = "dsv41-offload"

    @property
    def stage(self) -> str:
        """The staged tree on a node."""
        return f"{self.cache}/{self.stage_name}"

    @property
    def stage_in_container(self) -> str:
        """The staged tree inside the container."""
        return f"{self.cache_in_container}/{self.stage_name}"

    @property
    def extensions_in_container(self) -> str:
        """TORCH_EXTENSIONS_DIR inside the container."""
        return f"{self.cache_in_container}/torch_extensions"


class Remote(_Model):
    """The VLLM_ENGRAM_REMOTE_* variables."""

    timeout_ms: int = Field(default=100, ge=1, le=60000)
    retry_ms: int = Field(default=5000, ge=1, le=3600000)
    required: bool = True
    log_s: int = Field(default=60, ge=1, le=86400)
    bounce: bool = False
    key_file: str | None = None


class Serve(_Model):
    """The serve itself.

    Attributes:
        runtime: `docker`, or `process` for the lab.
        container: name of the container (or of the process runtime's slot).
        url: base URL of the OpenAI-compatible API, as the operator reaches it.
        command: arguments after the entrypoint, with `{rank}`, `{tp}`, `{port}`, `{head}` filled in per node.
        environment: variables of configuration A; B adds its own.
        docker_args: further arguments of `docker run`.
    """

    runtime: Literal["docker", "process"] = "docker"
    container: Name = "dsv41-serve"
    url: str
    port: int = Field(default=8001, ge=1, le=65535)
    model: str | None = None
    command: list[str] = []
    environment: dict[EnvName, str] = {}
    docker_args: list[str] = []
    memlock: str = "-1"
    max_jobs: int = Field(default=4, ge=1, le=64)
    ready_timeout_s: Seconds = 1800.0
    stop_timeout_s: Seconds = 60.0


class Verify(_Model):
    """`verify rows`: corner cases always, plus this many random rows a rank and table (seed: 838,880 rows a rank)."""

    sample_rows: int = Field(default=419440, ge=0)
    lookup_rows: int = Field(default=49152, ge=1)
    seed: int = 41


class Ab(_Model):
    """Defaults of `ab run`.

    Attributes:
        sizes: prompt sizes in tokens.
        max_tokens: generated tokens a prompt.
        floor_factor: how far A-B may exceed the A-A floor and still be within it.
    """

    sizes: list[int] = Field(default=[64, 8192, 32768], min_length=1)
    max_tokens: int = Field(default=64, ge=1)
    top_logprobs: int = Field(default=20, ge=0, le=20)
    prompt_logprobs: int = Field(default=1, ge=0, le=20)
    priority: int = 10
    data: str | None = None
    field: str = "text"
    floor_factor: float = Field(default=1.5, ge=1.0)
    timeout_s: Seconds = 1800.0


class Bench(_Model):
    """Defaults of `bench`."""

    prompt_tokens: list[int] = Field(default=[64, 2048], min_length=1)
    max_tokens: int = Field(default=32, ge=2)
    concurrency: list[int] = Field(default=[1, 4], min_length=1)
    requests: int = Field(default=8, ge=1)


class Lab(_Model):
    """The embedded lab; present only in a cluster file that the lab serves.

    Attributes:
        root: where its hosts live.
        vocab_size: engram_vocab_size of its small tables.
    """

    root: str
    vocab_size: int = Field(default=16000, ge=64)
    seed: int = 41


class Cluster(_Model):
    """A whole cluster file."""

    name: Name
    nodes: list[Node] = Field(min_length=1)
    table_hosts: list[TableHost] = Field(min_length=1)
    tables: Tables
    image: Image
    paths: Paths = Paths()
    remote: Remote = Remote()
    serve: Serve
    verify: Verify = Verify()
    ab: Ab = Ab()
    bench: Bench = Bench()
    lab: Lab | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [node.name for node in self.nodes] + [host.name for host in self.table_hosts]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"host name used twice: {', '.join(twice)}")
        ranks = sorted(node.rank for node in self.nodes)
        if ranks != list(range(len(ranks))):
            raise ValueError(f"ranks must be 0..{len(ranks) - 1}, each once; got {ranks}")
        served = {listener for host in self.table_hosts for listener in host.listeners}
        for node in self.nodes:
            if node.link.listener not in served:
                raise ValueError(f"node {node.name}: no table host listens on {node.link.listener}")
        return self

    @property
    def tp(self) -> int:
        """Tensor-parallel size: one rank a node."""
        return len(self.nodes)

    @property
    def by_rank(self) -> list[Node]:
        """Nodes in rank order."""
        return sorted(self.nodes, key=lambda node: node.rank)


def parse_listener(text: str) -> tuple[str, int]:
    """Splits ADDRESS:PORT (IPv6 in brackets).

    Raises:
        ValueError: not of that form, or the address is no IP address.
    """
    match = _LISTENER.match(text)
    if not match:
        raise ValueError(f"listener {text!r} is not ADDRESS:PORT")
    host = match["v6"] or match["v4"]
    ipaddress.ip_address(host)
    port = int(match["port"])
    if not 1 <= port <= 65535:
        raise ValueError(f"listener {text!r}: port {port} is outside 1..65535")
    return host, port
