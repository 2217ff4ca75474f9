"""Opens an ssh connection, and says in words of its own what kept it from opening."""

import base64
import hashlib
import socket
from pathlib import Path

import paramiko

from dsv41ctl.errors import HostError, HostUnreachable
from dsv41ctl.hosts.sshconfig import SshTarget

__all__ = ["connect", "fingerprint"]

CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 15


def fingerprint(key: paramiko.PKey) -> str:
    """A key's fingerprint as OpenSSH prints it."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


class _Unknown(paramiko.MissingHostKeyPolicy):
    """Refuses a host whose key nobody vouched for."""

    def __init__(self, name: str, target: SshTarget) -> None:
        self._name = name
        self._target = target

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        del client
        raise HostError(
            f"unknown host key of {hostname}: {fingerprint(key)}",
            host=self._name,
            hint=f"compare the fingerprint on the host, then accept it with: {_by_hand(self._target)}",
        )


def _by_hand(target: SshTarget) -> str:
    port = "" if target.port == 22 else f" -p {target.port}"
    return f"ssh{port} {target.user}@{target.hostname}"


def connect(name: str, target: SshTarget) -> paramiko.SSHClient:
    """Opens and authenticates a connection.

    Raises:
        HostUnreachable: no such name, refused, no answer.
        HostError: unknown or changed host key, or authentication refused.
    """
    client = paramiko.SSHClient()
    for file in target.known_hosts:
        if Path(file).is_file():
            try:
                client.load_host_keys(file)
            except (OSError, paramiko.SSHException) as error:
                raise HostError(f"cannot read {file}: {error}", host=name) from error
    client.set_missing_host_key_policy(_Unknown(name, target))
    where = f"{target.hostname} port {target.port}"
    try:
        link = socket.create_connection((target.hostname, target.port), timeout=CONNECT_TIMEOUT_S)
    except socket.gaierror as error:
        raise HostUnreachable(
            f"unreachable: no address for {target.hostname}", host=name, hint="connection.address in the cluster file"
        ) from error
    except TimeoutError as error:
        raise HostUnreachable(
            f"unreachable: {where} did not answer within {CONNECT_TIMEOUT_S:g} s", host=name, hint=_by_hand(target)
        ) from error
    except OSError as error:
        raise HostUnreachable(f"unreachable: {where}: {error.strerror}", host=name, hint=_by_hand(target)) from error
    try:
        _authenticate(client, name, target, link)
    except BaseException:
        client.close()
        link.close()
        raise
    return client


def _authenticate(client: paramiko.SSHClient, name: str, target: SshTarget, link: socket.socket) -> None:
    where = f"{target.user}@{target.hostname} port {target.port}"
    try:
        client.connect(
            # With a socket given, name and port serve to look the host key up, nothing else.
            target.key_name,
            port=22,
            username=target.user,
            sock=link,
            key_filename=list(target.identity_files),  # type: ignore[arg-type]  # a list is documented
            look_for_keys=False,
            allow_agent=True,
            timeout=CONNECT_TIMEOUT_S,
            banner_timeout=CONNECT_TIMEOUT_S,
            auth_timeout=CONNECT_TIMEOUT_S,
        )
    except paramiko.BadHostKeyException as error:
        raise HostError(
            f"the host key of {target.key_name} has changed: it shows {fingerprint(error.key)}, "
            f"known is {fingerprint(error.expected_key)}",
            host=name,
            hint="find out why before anything else",
        ) from error
    except (paramiko.AuthenticationException, paramiko.PasswordRequiredException) as error:
        tried = ", ".join(target.identity_files) or "the agent's keys only"
        raise HostError(
            f"authentication refused for {where} (tried {tried}): {error}", host=name, hint=_by_hand(target)
        ) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        # paramiko has no type of its own for "no key and no agent".
        if "authentication" in str(error).lower():
            raise HostError(
                f"authentication refused for {where}: no key to try", host=name, hint=_by_hand(target)
            ) from error
        raise HostUnreachable(
            f"unreachable: no ssh on {where}: {error or type(error).__name__}", host=name, hint=_by_hand(target)
        ) from error
    transport = client.get_transport()
    if transport is not None:
        transport.set_keepalive(KEEPALIVE_S)
