"""Identities side by side: what nodes present, what table servers hold. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dsv41ctl.checks.status import ServerStatus
from dsv41ctl.jsontypes import Json

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Identities", "compare_identities", "identity_table"]


class _Server(Protocol):
    @property
    def host(self) -> str: ...
    @property
    def status(self) -> ServerStatus | None: ...


@dataclass(frozen=True)
class Identities:
    """Layer -> host -> identity, or None where a host could not say."""

    layers: Mapping[int, Mapping[str, str | None]]
    problems: tuple[str, ...] = ()

    @property
    def unknown(self) -> bool:
        """Whether some host could not say."""
        return not self.layers or any(None in by_host.values() for by_host in self.layers.values())

    @property
    def agree(self) -> bool:
        """Whether every layer has one identity everywhere, and no shard contradicts its manifest."""
        return not self.problems and all(len(set(by_host.values())) == 1 for by_host in self.layers.values())

    def as_json(self) -> dict[str, Json]:
        """Schema 1."""
        layers: dict[str, Json] = {str(layer): dict(by_host) for layer, by_host in self.layers.items()}
        return {
            "schema": 1,
            "agree": self.agree and not self.unknown,
            "layers": layers,
            "problems": list(self.problems),
        }


def compare_identities(nodes: Mapping[str, Mapping[str, object]], servers: Iterable[_Server]) -> Identities:
    """Puts the documents of ident.py and of engram_server beside each other."""
    by_layer: dict[int, dict[str, str | None]] = {}
    problems: list[str] = []
    for node, document in nodes.items():
        tables = document.get("layers")
        for table in tables if isinstance(tables, list) else []:
            layer, identity = table.get("layer"), table.get("identity")
            by_layer.setdefault(int(layer), {})[node] = identity if isinstance(identity, str) else None
            found = table.get("problems")
            problems += [f"{node}: layer {layer}: {text}" for text in found if found] if isinstance(found, list) else []
    for server in servers:
        held = {table.layer: table.identity for table in server.status.tables} if server.status else {}
        for layer, by_host in by_layer.items():
            by_host[server.host] = held.get(layer)
    return Identities(by_layer, tuple(problems))


def identity_table(found: Identities) -> "Table":
    """One line a layer and host."""
    from rich.table import Table

    word = "inconclusive" if found.unknown else ("agree" if found.agree else "DIFFER")
    table = Table(title="identities", caption="; ".join([word, *found.problems]))
    for column in ("layer", "host", "identity"):
        table.add_column(column)
    for layer, by_host in sorted(found.layers.items()):
        for host, identity in by_host.items():
            table.add_row(str(layer), host, identity or "unknown")
    return table
