"""What only ssh has: keys, fingerprints, connections that go away."""

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from dsv41ctl.config.model import Connection
from dsv41ctl.errors import HostError, HostUnreachable
from dsv41ctl.hosts.ssh import SshHost
from dsv41ctl.hosts.sshconfig import parse_ssh_g, resolve


def _fingerprint(sshd) -> str:
    import subprocess

    text = subprocess.run(
        ["ssh-keygen", "-l", "-f", f"{sshd.host_key}.pub"], capture_output=True, text=True, check=True, timeout=10
    ).stdout
    return text.split()[1]


def test_one_connection_is_reused(far) -> None:
    first = far.run(("sh", "-c", "echo $SSH_CLIENT"), timeout=10).stdout
    assert first.strip()
    assert far.run(("sh", "-c", "echo $SSH_CLIENT"), timeout=10).stdout == first


def test_several_commands_at_once(far) -> None:
    far.run(("true",), timeout=10)
    begun = time.monotonic()
    outputs: list[str] = []

    def work(number: int) -> None:
        outputs.append(far.run(("sh", "-c", f"sleep 1; echo {number}"), timeout=10).stdout.strip())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outputs) == ["0", "1", "2", "3", "4"]
    assert time.monotonic() - begun < 4


def test_an_unknown_host_key_is_refused_with_its_fingerprint(sshd, tmp_path: Path) -> None:
    empty = tmp_path / "known_hosts"
    empty.write_text("")
    with pytest.raises(HostError, match="unknown host key") as caught:
        sshd.host(known_hosts=(str(empty),)).run(("true",), timeout=10)
    assert _fingerprint(sshd) in caught.value.message
    assert f"ssh -p {sshd.port}" in str(caught.value.hint)


def test_a_changed_host_key_is_refused(sshd, tmp_path: Path) -> None:
    kind, key = Path(f"{sshd.other_key}.pub").read_text().split()[:2]
    wrong = tmp_path / "known_hosts"
    wrong.write_text(f"[127.0.0.1]:{sshd.port} {kind} {key}\n")
    with pytest.raises(HostError, match="has changed") as caught:
        sshd.host(known_hosts=(str(wrong),)).run(("true",), timeout=10)
    assert _fingerprint(sshd) in caught.value.message


def test_authentication_refused_names_the_keys(sshd) -> None:
    with pytest.raises(HostError, match="authentication refused") as caught:
        sshd.host(identity_files=(str(sshd.other_key),)).run(("true",), timeout=10)
    assert str(sshd.other_key) in caught.value.message
    assert not isinstance(caught.value, HostUnreachable)


def test_no_key_at_all(sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(HostError, match="authentication refused"):
        sshd.host(identity_files=()).run(("true",), timeout=10)


def test_unreachable_port(sshd) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(HostUnreachable, match="refused") as caught:
            sshd.host(port=held.getsockname()[1]).run(("true",), timeout=10)
    assert caught.value.host == "far"


def test_a_name_without_address(sshd) -> None:
    with pytest.raises(HostUnreachable, match="no address"):
        sshd.host(hostname="no-such-host.invalid").run(("true",), timeout=10)


def test_a_port_that_is_no_ssh(sshd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            link, _ = server.accept()
            with link:
                link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(HostUnreachable, match="no ssh on"):
            sshd.host(port=server.getsockname()[1]).run(("true",), timeout=10)


def test_a_lost_connection_is_said_and_then_made_anew(far) -> None:
    with pytest.raises(HostUnreachable, match="connection lost"):
        # The parent of our command's shell is the connection's own sshd.
        far.run(("sh", "-c", "kill -9 $(ps -o ppid= -p $(ps -o ppid= -p $(ps -o ppid= -p $$))); sleep 5"), timeout=10)
    assert far.run(("echo", "back"), timeout=10).stdout == "back\n"


def test_a_command_that_a_signal_ends(far) -> None:
    assert far.run(("sh", "-c", "kill -9 $$"), timeout=10, check=False).status == 128 + signal.SIGKILL


def test_home_is_asked_once(far) -> None:
    assert far.home == far.run(("sh", "-c", "cd && pwd"), timeout=10).stdout.strip()
    assert far.expand("~/x") == f"{far.home}/x"


def test_ssh_g_is_read() -> None:
    text = "hostname 10.0.0.7\nport 2222\nuser root\nidentityfile ~/.ssh/a\nidentityfile ~/.ssh/b\nproxyjump bastion\n"
    assert parse_ssh_g(text) == {
        "hostname": ["10.0.0.7"],
        "port": ["2222"],
        "user": ["root"],
        "identityfile": ["~/.ssh/a", "~/.ssh/b"],
        "proxyjump": ["bastion"],
    }


@pytest.fixture
def ssh_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir(mode=0o700)
    return tmp_path / ".ssh"


def test_openssh_configuration_applies(ssh_home: Path) -> None:
    (ssh_home / "key").write_text("")
    (ssh_home / "config").write_text(
        f"Host spark\n  HostName 10.1.2.3\n  Port 2200\n  User dgx\n  IdentityFile {ssh_home}/key\n"
    )
    target = resolve("spark", Connection())
    assert (target.hostname, target.port, target.user) == ("10.1.2.3", 2200, "dgx")
    assert target.key_name == "[10.1.2.3]:2200"
    assert target.identity_files == (f"{ssh_home}/key",)
    assert target.known_hosts[0] == f"{ssh_home}/known_hosts"


def test_the_cluster_file_wins(ssh_home: Path) -> None:
    (ssh_home / "config").write_text("Host 10.9.9.9\n  Port 2200\n  User dgx\n")
    target = resolve("spark", Connection(address="10.9.9.9", port=22, user="me", identity_file="~/k"))
    assert (target.hostname, target.port, target.user, target.key_name) == ("10.9.9.9", 22, "me", "10.9.9.9")
    assert target.identity_files == (f"{os.environ['HOME']}/k",)


def test_a_jump_host_is_not_supported_yet(ssh_home: Path) -> None:
    (ssh_home / "config").write_text("Host spark\n  ProxyJump bastion\n")
    with pytest.raises(HostError, match="ProxyJump bastion, which is not supported yet"):
        resolve("spark", Connection())


def test_without_openssh_the_cluster_file_is_enough(ssh_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(ssh_home))
    target = resolve("spark", Connection(address="10.0.0.1", user="me"))
    assert (target.hostname, target.port, target.user) == ("10.0.0.1", 22, "me")


def test_the_whole_way_from_a_cluster_file(sshd, ssh_home: Path) -> None:
    (ssh_home / "known_hosts").write_text(sshd.known_hosts.read_text())
    connection = Connection(
        address="127.0.0.1", port=sshd.port, user=sshd.target().user, identity_file=str(sshd.client_key)
    )
    host = SshHost("spark", connection)
    try:
        assert host.run(("echo", "hello"), timeout=10).stdout == "hello\n"
    finally:
        host.close()
