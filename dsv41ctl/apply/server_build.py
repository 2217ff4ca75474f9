"""`server build`: sources onto the table host, built and installed there; nothing when they are built already."""

import hashlib
import json
import os
import re
from pathlib import Path

from dsv41ctl import assets
from dsv41ctl.apply.compiler import first_error
from dsv41ctl.apply.engine import transaction
from dsv41ctl.apply.outcome import Outcome
from dsv41ctl.apply.session import Session
from dsv41ctl.config.model import TableHost
from dsv41ctl.errors import CommandFailed, HostError
from dsv41ctl.hosts import Command, Host, LocalHost, parallel
from dsv41ctl.plan import (
    BUILD_PACKAGES,
    Nothing,
    RunCommand,
    Step,
    Word,
    build_commands,
    plan_put_tree,
    server_paths,
    server_programs,
    server_tree,
)

__all__ = ["server_build"]

SHARED_BUILD = "DSV41_NATIVE_BUILD"
_CONFIGURE_S = 300.0
_BUILD_S = 1800.0
_ASK_S = 60.0
_PACKAGES = f"apt-get install {' '.join(BUILD_PACKAGES)}"
_NO_HEADER = re.compile(r"fatal error: .*: No such file or directory|Could NOT find")
_TOOLS = 'for tool in cmake ninja g++; do command -v "$tool" >/dev/null || printf "%s " "$tool"; done'
# $1 from, $2 to, then names. Each program takes its name only when it is whole.
_INSTALL = """set -eu
from=$1; to=$2; shift 2; mkdir -p -- "$to"
for name in "$@"; do
  tmp="$to/.$name.new"; cp -- "$from/$name" "$tmp"; chmod 755 "$tmp"; sync "$tmp"; mv -fT -- "$tmp" "$to/$name"
done
"""


def server_build(session: Session) -> Outcome:
    """Builds engram_server and engram_check on every table host.

    Raises:
        HostError: a build tool or a library is missing there.
        CommandFailed: it does not compile.
    """
    tree = server_tree(assets.native())
    digest = hashlib.sha256()
    for path, data in sorted(tree.items()):
        digest.update(f"{path}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    hosts = session.table_hosts
    with transaction(session) as running:
        planned = (
            {host.name: _plan(session, host, tree, None) for host in hosts}
            if session.offline
            else parallel(hosts, lambda host: _observe_and_plan(session, host, tree, digest.hexdigest()))
        )
        try:
            running.apply(step for steps in planned.values() for step in steps)
        except CommandFailed as error:
            raise _explained(error) from error
        if not session.dry_run:
            parallel(hosts, lambda host: _stamp(session, host, digest.hexdigest()))
    return Outcome("server build", tuple(running.results))


def _observe_and_plan(session: Session, host: Host, tree: dict[str, bytes], digest: str) -> list[Step]:
    entry = session.table_entry(host.name)
    paths = server_paths(entry, host.home)
    if "/" in entry.binary:
        return [Step(host.name, f"build {entry.binary}", Nothing(), None, Word.UNCHANGED, "a binary given by path")]
    if _built(host, entry, digest):
        return [Step(host.name, "build engram_server", Nothing(), None, Word.UNCHANGED, f"sources {digest[:16]}")]
    shared = _shared_build(host)
    if shared is not None:
        command: Command = ("ninja", "-C", str(shared), "-j2", *server_programs(entry))
        return [
            Step(host.name, f"build engram_server in {shared}", RunCommand(command, _BUILD_S)),
            _install_step(host.name, entry, host.home, str(shared)),
        ]
    if not session.dry_run:
        missing = host.run(("sh", "-c", _TOOLS), timeout=_ASK_S).stdout.split()
        if missing:
            raise HostError(f"cannot build: {', '.join(missing)} missing", host=host.name, hint=_PACKAGES)
    return _plan(session, host, tree, host.sha256_tree(paths.src))


def _plan(session: Session, host: Host, tree: dict[str, bytes], observed: dict[str, str] | None) -> list[Step]:
    entry = session.table_entry(host.name)
    paths = server_paths(entry, host.home)
    configure, build = build_commands(entry, host.home)
    return [
        *plan_put_tree(host.name, paths.src, tree, observed, verb="put"),
        Step(host.name, "configure", RunCommand(configure, _CONFIGURE_S)),
        Step(host.name, "build engram_server", RunCommand(build, _BUILD_S)),
        _install_step(host.name, entry, host.home, paths.build),
    ]


def _install_step(host: str, entry: TableHost, home: str, source: str) -> Step:
    paths = server_paths(entry, home)
    names = server_programs(entry)
    command: Command = ("sh", "-c", _INSTALL, "dsv41ctl", source, paths.bin, *names)
    return Step(host, f"install {', '.join(names)} from {source}", RunCommand(command, _ASK_S))


def _built(host: Host, entry: TableHost, digest: str) -> bool:
    """Whether the stamp names these sources and the programs are the ones it was written for."""
    paths = server_paths(entry, host.home)
    tree = host.sha256_tree(paths.bin)
    if "stamp.json" not in tree:
        return False
    try:
        stamp = json.loads(host.get(paths.stamp))
        programs = dict(stamp["programs"])
        same = stamp["sources"] == digest
    except (ValueError, KeyError, TypeError):
        return False
    names = server_programs(entry)
    return same and set(names) <= set(programs) and all(tree.get(name) == programs[name] for name in names)


def _stamp(session: Session, host: Host, digest: str) -> None:
    entry = session.table_entry(host.name)
    if "/" in entry.binary or _built(host, entry, digest):
        return
    paths = server_paths(entry, host.home)
    tree = host.sha256_tree(paths.bin)
    names = server_programs(entry)
    missing = [name for name in names if name not in tree]
    if missing:
        raise HostError(f"{', '.join(missing)} not in {paths.bin} after the build", host=host.name)
    document = {"sources": digest, "programs": {name: tree[name] for name in names}}
    host.put((json.dumps(document, indent=1) + "\n").encode(), paths.stamp)


def _shared_build(host: Host) -> Path | None:
    """The operator's own build directory of the same sources, for hosts of this machine."""
    named = os.environ.get(SHARED_BUILD)
    if not named or not isinstance(host, LocalHost):
        return None
    directory = Path(named).expanduser().resolve()
    home = f"CMAKE_HOME_DIRECTORY:INTERNAL={assets.native().resolve()}"
    try:
        cache = (directory / "CMakeCache.txt").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return directory if home in cache else None


def _explained(error: CommandFailed) -> HostError:
    """A missing library in the words of what to install; else the first error of the compiler."""
    lines = [line.strip() for line in error.output.splitlines()]
    missing = next((line for line in lines if "could not find" in line.lower() or _NO_HEADER.search(line)), None)
    host = error.host or ""
    if missing is not None:
        return HostError(f"cannot build: {missing}", host=host, hint=_PACKAGES)
    return CommandFailed(error.argv, error.status, first_error(error.output), host=host)
