import pytest
from syrupy.assertion import SnapshotAssertion

from dsv41ctl.config import Cluster
from dsv41ctl.config.model import TableHost
from dsv41ctl.errors import ConfigError
from dsv41ctl.hosts import real
from dsv41ctl.plan import build_commands, server_argv, server_programs, server_unit


def _changed(entry: TableHost, **changes: object) -> TableHost:
    return entry.model_copy(update=changes)


def test_argv_and_build(spark: Cluster, lab: Cluster, snapshot: SnapshotAssertion) -> None:
    assert [
        [
            real(server_argv(cluster.table_hosts[0], "/home/op")),
            *map(real, build_commands(cluster.table_hosts[0], "/home/op")),
        ]
        for cluster in (spark, lab)
    ] == snapshot


def test_every_setting_reaches_the_server(spark: Cluster) -> None:
    entry = _changed(
        spark.table_hosts[0], manifest="~/m.json", layers=[1, 14], key_file="~/key", huge_pages=False,
        binary="/opt/engram_server", extra_args=["--max-connections", "8"],
    )  # fmt: skip
    argv = real(server_argv(entry, "/h"))
    assert argv[:4] == ["/opt/engram_server", "serve", "--manifest", "/h/m.json"]
    for words in (["--layers", "1,14"], ["--key-file", "/h/key"], ["--listen", "10.202.29.1:18610"]):
        assert argv[argv.index(words[0]) if words[0] != "--listen" else argv.index(words[1]) - 1 :][:2] == words
    assert "--no-huge-pages" in argv
    assert argv[-2:] == ["--max-connections", "8"]
    assert server_programs(entry) == ("engram_check", "engram_server")


def test_a_socket_path_that_no_socket_can_have(spark: Cluster) -> None:
    with pytest.raises(ConfigError, match="too long for a socket"):
        server_argv(spark.table_hosts[0], f"/{'x' * 90}")


def test_unit(spark: Cluster, snapshot: SnapshotAssertion) -> None:
    text = server_unit(spark.table_hosts[0])
    assert text == snapshot
    for setting in (
        "NoNewPrivileges=yes", "ProtectSystem=strict", "PrivateTmp=yes", "MemoryDenyWriteExecute=yes",
        "RestrictAddressFamilies=", "LimitMEMLOCK=", "TimeoutStartSec=660",
    ):  # fmt: skip
        assert setting in text
    # The whole argument vector, in its order, is what systemd runs.
    start = text.split("ExecStart=")[1].split("\nExecStartPost")[0].replace("\\\n", " ").split()
    assert start == real(server_argv(spark.table_hosts[0], "%h"))


def test_unit_quotes(spark: Cluster) -> None:
    assert '--model-dir "/srv/a b$$c"' in server_unit(_changed(spark.table_hosts[0], model_dir="/srv/a b$c"))
