"""The table server's status document, as `engram_server status --json` prints it."""

from pydantic import BaseModel, ConfigDict

__all__ = ["GatherTimes", "Opens", "Refusals", "ServerStatus", "TableStatus"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class TableStatus(_Model):
    """One table in the server's memory."""

    layer: int
    rows: int
    bytes: int
    verified: bool
    identity: str | None
    progress: float
    load_s: float


class Opens(_Model):
    """Opened connections."""

    current: int
    total: int


class Refusals(_Model):
    """Refusals by code, codes as text."""

    total: int
    by_code: dict[str, int]


class GatherTimes(_Model):
    """Gather time per lookup, microseconds."""

    count: int
    p50: float
    p99: float
    mean: float
    max: float


class ServerStatus(_Model):
    """Status document, schema 1."""

    ready: bool
    version: str
    protocol: int
    pid: int
    uptime_s: float
    rss_bytes: int
    huge_bytes: int
    huge_share: float
    tables: list[TableStatus]
    listeners: list[str]
    connections: int
    opens: Opens
    lookups: int
    rows: int
    bytes: int
    refusals: Refusals
    gather_us: GatherTimes
