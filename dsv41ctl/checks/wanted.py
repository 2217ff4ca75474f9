"""What each node must show in configuration B, from the cluster file and the manifest. Pure."""

from collections.abc import Mapping

from dsv41ctl.checks.evaluate import Expected, TableExpected
from dsv41ctl.config import Cluster
from dsv41ctl.config.model import Node
from dsv41ctl.engram.manifest import Manifest

__all__ = ["expected_b"]


def expected_b(
    cluster: Cluster,
    manifest: Manifest,
    node: Node,
    *,
    environment: Mapping[str, str],
    overlay_sha256: str | None,
) -> Expected:
    """What `node` must show.

    Args:
        cluster: the cluster file.
        manifest: of the tables.
        node: one of its nodes.
        environment: B's variables as they must read back on this node.
        overlay_sha256: sha256 of the overlay that was staged, from staged.json.

    Raises:
        UsageError: the manifest lacks a layer of the cluster, or the sharding leaves a rank without heads.
    """
    tables = []
    for layer in cluster.tables.layers:
        shard = manifest.geometry.shard(layer, node.rank, cluster.tp)
        identity = cluster.tables.identities.get(layer, manifest.table(layer).identity)
        tables.append(TableExpected(layer, shard.start, shard.end, identity))
    return Expected(
        node=node.name,
        rank=node.rank,
        url=node.link.url,
        environment=environment,
        overlay_path=environment["DSV41_ENGRAM_OVERLAY"],
        overlay_sha256=overlay_sha256,
        staging_rows=cluster.tables.staging_rows,
        placement="bounce copy" if cluster.remote.bounce else "direct placement",
        tables=tuple(tables),
    )
