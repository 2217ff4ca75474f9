import pytest

from dsv41ctl import assets
from dsv41ctl.config import Cluster, load_cluster


@pytest.fixture
def spark() -> Cluster:
    return load_cluster(assets.configs() / "spark.toml")


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("DSV41_LAB_ROOT", "/lab")
    return load_cluster(assets.configs() / "lab.toml")
