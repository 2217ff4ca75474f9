"""The exact argument vector of every command that a runtime gives to a host."""

import shlex
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from dsv41ctl.config import Cluster
from dsv41ctl.errors import ConfigError
from dsv41ctl.hosts import masked, real, shown
from dsv41ctl.runtimes import DockerRuntime, ProcessRuntime, Runtime

# The runbook's step 2 as it stands there, between `ssh $n '` and `' & done`.
SEED_PREBUILD = r"""docker run --rm --gpus all --device /dev/infiniband -v $HOME/.cache/dsv41-serve:/root/.cache \
  -e TORCH_EXTENSIONS_DIR=/root/.cache/torch_extensions -e MAX_JOBS=4 \
  -e PYTHONPATH=/root/.cache/dsv41-offload/offload/engram/spark/py \
  -e DSV41_ENGRAM_OVERLAY=/root/.cache/dsv41-offload/offload/engram/spark/engram.py \
  -e VLLM_ENGRAM_REMOTE_ROOT=/root/.cache/dsv41-offload \
  --entrypoint python3 ghcr.io/henryous/deepseek-v41-1017-dgx-spark:v5 -c "
import vllm.models.deepseek_v41.common.engram as e
print(\"overlay:\", e.__file__); print(\"ext:\", e._load_engram_remote_ext().__file__)" """


def _runtime(cluster: Cluster) -> Runtime:
    if cluster.serve.runtime == "docker":
        return DockerRuntime(cluster)
    return ProcessRuntime(cluster, interpreter="/image/bin/python", image=Path("/lab/image"))


def _changed(cluster: Cluster, **serve: object) -> Cluster:
    return cluster.model_copy(update={"serve": cluster.serve.model_copy(update=serve)})


def test_the_prebuild_is_the_seeds_step_2(spark: Cluster) -> None:
    assert real(DockerRuntime(spark).prebuild_command(spark.nodes[0], "$HOME")) == shlex.split(
        SEED_PREBUILD.replace("\\\n", "")
    )


@pytest.mark.parametrize("name", ["spark", "lab"])
def test_every_command(name: str, request: pytest.FixtureRequest, snapshot: SnapshotAssertion) -> None:
    cluster: Cluster = request.getfixturevalue(name)
    runtime = _runtime(cluster)
    assert {
        node.name: {
            "prebuild": real(runtime.prebuild_command(node, "/home/op")),
            "start A": real(runtime.start_command(node, "A", "/home/op")),
            "start B": real(runtime.start_command(node, "B", "/home/op")),
            "stop": [word for word in real(runtime.stop_command(node, "/home/op")) if not word.endswith("slot.py")],
            "added": runtime.added(node, "B", "/home/op"),
        }
        for node in cluster.by_rank
    } == snapshot


@pytest.mark.parametrize("name", ["spark", "lab"])
def test_the_arms_differ_in_bs_variables_alone(name: str, request: pytest.FixtureRequest) -> None:
    cluster: Cluster = request.getfixturevalue(name)
    runtime = _runtime(cluster)
    node = cluster.nodes[0]
    a, b = (runtime.environment(node, arm, "/h") for arm in ("A", "B"))  # type: ignore[arg-type]
    added = runtime.added(node, "B", "/h")
    assert runtime.added(node, "A", "/h") == {}
    assert {key: value for key, value in b.items() if a.get(key) != value} == added
    assert set(a) <= set(b)


def test_placeholders_leave_other_braces_alone(spark: Cluster) -> None:
    config = '{"disk_offload": true, "rank": {rank}}'
    runtime = DockerRuntime(
        _changed(spark, command=["--engram-config", config, "{head}:{port}", "{model_dir}", "{node}"])
    )
    assert runtime.arguments(spark.by_rank[1], "/h") == [
        "--engram-config", '{"disk_offload": true, "rank": 1}', "spark:8001", "/srv/dsv41/model", "spark-b",
    ]  # fmt: skip


def test_an_own_mount_of_the_model_wins(spark: Cluster) -> None:
    runtime = DockerRuntime(_changed(spark, docker_args=["-v", "/data/model:/srv/dsv41/model:ro"]))
    argv = real(runtime.start_command(spark.nodes[0], "A", "/h"))
    assert sum(":/srv/dsv41/model" in word for word in argv) == 1


def test_a_relative_path_in_the_container_is_refused(spark: Cluster) -> None:
    paths = spark.paths.model_copy(update={"cache_in_container": "~/.cache"})
    with pytest.raises(ConfigError, match="must be absolute"):
        DockerRuntime(spark.model_copy(update={"paths": paths}))


@pytest.mark.parametrize("name", ["spark", "lab"])
def test_a_credential_shows_nowhere(name: str, request: pytest.FixtureRequest) -> None:
    cluster = _changed(request.getfixturevalue(name), environment={"HF_TOKEN": "s3ntinel"})
    runtime = _runtime(cluster)
    command = runtime.start_command(cluster.nodes[0], "B", "/h")
    assert "HF_TOKEN=s3ntinel" in real(command)
    assert "HF_TOKEN=****" in masked(command)
    assert "s3ntinel" not in shown(command) + repr(command)
