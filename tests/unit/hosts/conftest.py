"""A real sshd on 127.0.0.1, started and ended by the tests. Without one the tests fail: it is part of the setup."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsv41ctl.config.model import Connection
from dsv41ctl.hosts.ssh import SshHost
from dsv41ctl.hosts.sshconfig import SshTarget


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=30)


@dataclass(frozen=True)
class Sshd:
    port: int
    client_key: Path
    other_key: Path
    known_hosts: Path
    host_key: Path
    process: "subprocess.Popen[bytes]"

    def target(self, **changes: object) -> SshTarget:
        values: dict[str, object] = {
            "hostname": "127.0.0.1",
            "port": self.port,
            "user": "root" if os.getuid() == 0 else os.environ.get("USER", "nobody"),
            "key_name": f"[127.0.0.1]:{self.port}",
            "identity_files": (str(self.client_key),),
            "known_hosts": (str(self.known_hosts),),
        }
        return SshTarget(**(values | changes))  # type: ignore[arg-type]

    def host(self, name: str = "far", **changes: object) -> SshHost:
        return SshHost(name, Connection(), self.target(**changes))


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    assert program, "sshd is missing: apt-get install openssh-server (scripts/setup does)"
    root = tmp_path_factory.mktemp("sshd")
    for name in ("host", "client", "other"):
        keygen(root / name)
    authorized = root / "authorized_keys"
    authorized.write_text((root / "client.pub").read_text())
    authorized.chmod(0o600)
    port = free_port()
    config = root / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {root / 'host'}\nPidFile {root / 'pid'}\n"
        f"AuthorizedKeysFile {authorized}\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin yes\nStrictModes no\nMaxStartups 100\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    log = (root / "log").open("wb")
    process = subprocess.Popen([program, "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
    kind, key = (root / "host.pub").read_text().split()[:2]
    known = root / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    try:
        deadline = time.monotonic() + 10
        while True:
            assert process.poll() is None, (root / "log").read_text()
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, (root / "log").read_text()
                time.sleep(0.05)
        yield Sshd(port, root / "client", root / "other", known, root / "host", process)
    finally:
        process.terminate()
        process.wait(10)
        log.close()


@pytest.fixture
def far(sshd: Sshd) -> Iterator[SshHost]:
    host = sshd.host()
    yield host
    host.close()
