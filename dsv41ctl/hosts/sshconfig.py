"""Where an ssh host really is: the cluster file first, then what OpenSSH's own configuration says."""

import getpass
import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dsv41ctl.config.model import Connection
from dsv41ctl.errors import HostError

__all__ = ["SshTarget", "parse_ssh_g", "resolve"]

_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass(frozen=True)
class SshTarget:
    """How to reach an ssh host.

    Attributes:
        key_name: the name under which known_hosts is searched.
        identity_files: private keys to try, after the agent's.
        known_hosts: files with known host keys.
    """

    hostname: str
    port: int
    user: str
    key_name: str
    identity_files: tuple[str, ...]
    known_hosts: tuple[str, ...]


def resolve(name: str, connection: Connection) -> SshTarget:
    """Merges the cluster file's entry with `ssh -G`, where OpenSSH is there.

    Raises:
        HostError: a jump host would be needed, or ssh refuses its configuration.
    """
    address = connection.address or name
    settings = _ask_ssh(name, address, connection)
    jump = settings.get("proxyjump", ["none"])[0]
    command = settings.get("proxycommand", ["none"])[0]
    for key, value in (("ProxyJump", jump), ("ProxyCommand", command)):
        if value != "none":
            raise HostError(
                f"needs {key} {value}, which is not supported yet",
                host=name,
                hint=f"give connection.address an address that is reached without {key}",
            )
    hostname = settings.get("hostname", [address])[0]
    port = connection.port or int(settings.get("port", ["22"])[0])
    alias = settings.get("hostkeyalias", [None])[0]
    return SshTarget(
        hostname=hostname,
        port=port,
        user=connection.user or settings.get("user", [getpass.getuser()])[0],
        key_name=alias or (hostname if port == 22 else f"[{hostname}]:{port}"),
        identity_files=_identities(connection, settings),
        known_hosts=_known_hosts(settings),
    )


def parse_ssh_g(text: str) -> dict[str, list[str]]:
    """The output of `ssh -G`: key -> values, in order."""
    settings: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        if key and value:
            settings.setdefault(key.lower(), []).append(value)
    return settings


def _ask_ssh(name: str, address: str, connection: Connection) -> dict[str, list[str]]:
    ssh = shutil.which("ssh")
    if ssh is None:
        return {}
    argv = [ssh, "-G"]
    if connection.port:
        argv += ["-p", str(connection.port)]
    if connection.user:
        argv += ["-l", connection.user]
    own = Path.home() / ".ssh" / "config"
    # OpenSSH takes the home from passwd, we take $HOME: where they differ, the file is named.
    if str(Path.home()) != pwd.getpwuid(os.getuid()).pw_dir:
        argv += ["-F", str(own) if own.is_file() else "none"]
    try:
        done = subprocess.run([*argv, "--", address], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"`ssh -G {address}` failed: {error}", host=name) from error
    if done.returncode != 0:
        problem = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}"
        raise HostError(f"`ssh -G {address}`: {problem}", host=name, hint=f"ssh -G {address}")
    return parse_ssh_g(done.stdout)


def _identities(connection: Connection, settings: dict[str, list[str]]) -> tuple[str, ...]:
    if connection.identity_file:
        return (str(Path(connection.identity_file).expanduser()),)
    named = settings.get("identityfile") or [f"~/.ssh/{key}" for key in _DEFAULT_KEYS]
    files = (Path(file).expanduser() for file in named)
    return tuple(str(file) for file in files if file.is_file())


def _known_hosts(settings: dict[str, list[str]]) -> tuple[str, ...]:
    named = [str(Path.home() / ".ssh" / "known_hosts")]
    for key in ("userknownhostsfile", "globalknownhostsfile"):
        named += [str(Path(file).expanduser()) for line in settings.get(key, []) for file in line.split()]
    return tuple(dict.fromkeys(named))
