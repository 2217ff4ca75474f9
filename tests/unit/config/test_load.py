from pathlib import Path

import pytest

from dsv41ctl import assets
from dsv41ctl.config import load_cluster
from dsv41ctl.errors import ConfigError

LAB = (assets.configs() / "lab.toml").read_text()


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(text)
    return path


def line_of(text: str, needle: str) -> int:
    return text[: text.index(needle)].count("\n") + 1


@pytest.mark.parametrize("name", ["lab", "spark"])
def test_the_shipped_files_load(name: str) -> None:
    cluster = load_cluster(assets.configs() / f"{name}.toml")
    assert cluster.tp == 2
    assert [node.rank for node in cluster.by_rank] == [0, 1]


def test_spark_has_the_runbooks_links() -> None:
    cluster = load_cluster(assets.configs() / "spark.toml")
    assert [node.link.url for node in cluster.by_rank] == [
        "rdma://10.202.28.1:18610@10.202.28.2",
        "rdma://10.202.29.1:18610@10.202.29.2",
    ]
    assert cluster.paths.stage == "~/.cache/dsv41-serve/dsv41-offload"
    assert cluster.paths.stage_in_container == "/root/.cache/dsv41-offload"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("retry_ms = 500", "retry_ms = 0", "remote.retry_ms"),
        ("retry_ms = 500", 'retry_sm = 500', "remote.retry_sm"),
        ('scheme = "tcp", listener = "127.0.0.1:18611"', 'scheme = "ib", listener = "127.0.0.1:18611"', "nodes.1.link"),
        ('listeners = ["127.0.0.1:18610", "127.0.0.1:18611"]', 'listeners = ["0.0.0.0:18610", "127.0.0.1:18611"]', "wildcard"),
        ('listeners = ["127.0.0.1:18610", "127.0.0.1:18611"]', 'listeners = ["127.0.0.1:18610"]', "no table host listens on"),
        ('name = "spark-b"', 'name = "spark"', "used twice"),
        ("rank = 1", "rank = 2", "ranks must be"),
        ("sizes = [32, 1024, 4096]", "sizes = []", "ab.sizes"),
    ],
)  # fmt: skip
def test_one_line_names_file_and_key(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in LAB
    path = write(tmp_path, LAB.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_cluster(path)
    text = str(caught.value)
    assert says in text
    assert str(path) in text
    assert "\n" not in text


def test_the_line_of_a_wrong_key_is_named(tmp_path: Path) -> None:
    text = LAB.replace("retry_ms = 500", "retry_ms = 0")
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=f"{path}:{line_of(text, 'retry_ms')}: remote.retry_ms"):
        load_cluster(path)


def test_the_line_of_a_key_in_the_second_node_is_named(tmp_path: Path) -> None:
    text = LAB.replace("rank = 1", "rank = -1")
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=f":{line_of(text, 'rank = -1')}: nodes.1.rank"):
        load_cluster(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"name = ", "not TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"", "Field required"),
        (b'name = "${NOT_SET_ANYWHERE}"', "is not set"),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        load_cluster(path)
    with pytest.raises(ConfigError, match="No such file"):
        load_cluster(tmp_path / "missing.toml")


def test_not_toml_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 3"):
        load_cluster(write(tmp_path, 'name = "x"\n\nbroken =\n'))
