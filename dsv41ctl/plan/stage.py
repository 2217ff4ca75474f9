"""`stage` as steps: what lies on a node against what should."""

import hashlib
import posixpath
from collections.abc import Mapping

from dsv41ctl.config import Cluster
from dsv41ctl.plan.steps import Nothing, PutFile, RemoveFile, RemoveTree, RestoreFile, Step, Undo, Word
from dsv41ctl.plan.tree import STAGED

__all__ = ["plan_purge", "plan_put_tree", "plan_stage"]

_CACHE = "__pycache__"


def plan_stage(
    cluster: Cluster,
    host: str,
    desired: Mapping[str, bytes],
    observed: Mapping[str, str] | None,
    pending: Mapping[str, str] | None = None,
) -> list[Step]:
    """Steps that make a node's staged tree the desired one.

    Args:
        cluster: the cluster file.
        host: the node.
        desired: path -> content.
        observed: path -> sha256 on the node; None when nobody may look (offline).
        pending: path -> why its content is not known yet.
    """
    steps = [
        Step(host, f"stage {path}", Nothing(), None, Word.WOULD, reason) for path, reason in (pending or {}).items()
    ]
    steps += plan_put_tree(host, cluster.paths.stage, desired, observed, verb="stage", keep=pending or {})
    return steps


def plan_put_tree(
    host: str,
    root: str,
    desired: Mapping[str, bytes],
    observed: Mapping[str, str] | None,
    *,
    verb: str,
    keep: Mapping[str, str] | None = None,
) -> list[Step]:
    """Puts, removals and unchanged files of one tree. `staged.json` comes last: it vouches for the rest.

    Args:
        host: where.
        root: the tree's directory.
        desired: path -> content.
        observed: path -> sha256; None when nobody may look.
        verb: first word of each step's title.
        keep: further paths that are no strays.
    """
    seen = observed or {}
    puts: list[Step] = []
    last: list[Step] = []
    changed_dirs: set[str] = set()
    for path, data in desired.items():
        target = f"{root}/{path}"
        if seen.get(path) == hashlib.sha256(data).hexdigest():
            step = Step(host, f"{verb} {path}", Nothing(), None, Word.UNCHANGED)
        else:
            changed_dirs.add(posixpath.dirname(path))
            undo: Undo = RestoreFile(target) if path in seen else RemoveFile(target)
            step = Step(host, f"{verb} {path}", PutFile(target, data), undo)
        (last if path == STAGED else puts).append(step)
    removals = [
        Step(host, f"remove stray {path}", RemoveFile(f"{root}/{path}"), RestoreFile(f"{root}/{path}"))
        for path in sorted(seen)
        if path not in desired and path not in (keep or {}) and not _is_live_cache(path, changed_dirs)
    ]
    # An interrupted run leaves temporary files of ours behind: they are strays like any other.
    return puts + removals + last


def _is_live_cache(path: str, changed_dirs: set[str]) -> bool:
    """Byte code that Python wrote beside staged files; stale once a file beside it changes."""
    parent = posixpath.dirname(path)
    return posixpath.basename(parent) == _CACHE and posixpath.dirname(parent) not in changed_dirs


def plan_purge(cluster: Cluster, host: str, observed: Mapping[str, str] | None) -> list[Step]:
    """Removes a node's staged tree."""
    title = f"remove {cluster.paths.stage}"
    if observed is not None and not observed:
        return [Step(host, title, Nothing(), None, Word.UNCHANGED, "nothing is staged")]
    return [Step(host, title, RemoveTree(cluster.paths.stage, cluster.paths.cache))]
