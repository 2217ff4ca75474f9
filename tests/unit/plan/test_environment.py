import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41ctl.config import Cluster
from dsv41ctl.errors import ConfigError
from dsv41ctl.plan import arm_of, docker_env, expand_env, mask_env, prebuild_env, render_env, serve_env
from dsv41ctl.plan.environment import check_values

# The runbook's block of step 3, letter by letter.
SEED = """\
PYTHONPATH=/root/.cache/dsv41-offload/offload/engram/spark/py
DSV41_ENGRAM_OVERLAY=/root/.cache/dsv41-offload/offload/engram/spark/engram.py
VLLM_ENGRAM_REMOTE_ROOT=/root/.cache/dsv41-offload
VLLM_ENGRAM_REMOTE=rdma://10.202.28.1:18610@10.202.28.2,rdma://10.202.29.1:18610@10.202.29.2
VLLM_ENGRAM_REMOTE_TIMEOUT_MS=100 VLLM_ENGRAM_REMOTE_RETRY_MS=5000 VLLM_ENGRAM_REMOTE_REQUIRED=1 VLLM_ENGRAM_REMOTE_LOG_S=60"""

FIT = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")).filter(lambda char: not char.isspace()),
    max_size=30,
)


def _changed(cluster: Cluster, **remote: object) -> Cluster:
    return cluster.model_copy(update={"remote": cluster.remote.model_copy(update=remote)})


def _with_environment(cluster: Cluster, environment: dict[str, str]) -> Cluster:
    return cluster.model_copy(update={"serve": cluster.serve.model_copy(update={"environment": environment})})


def test_b_is_the_seeds_block(spark: Cluster) -> None:
    assert render_env(docker_env(spark, "B")) == SEED


def test_a_adds_nothing(spark: Cluster) -> None:
    assert docker_env(spark, "A") == {}
    assert set(serve_env(spark, "B")) - set(serve_env(spark, "A")) == set(docker_env(spark, "B"))
    assert serve_env(spark, "A")["VLLM_ENGRAM_DISK_SPIN_MS"] == "1000"


def test_optional_variables_only_when_set(spark: Cluster) -> None:
    found = docker_env(_changed(spark, bounce=True, key_file="/root/.cache/key"), "B")
    assert list(found)[-2:] == ["VLLM_ENGRAM_REMOTE_BOUNCE", "VLLM_ENGRAM_REMOTE_KEY_FILE"]
    assert found["VLLM_ENGRAM_REMOTE_BOUNCE"] == "1"
    assert render_env(found) == f"{SEED}\nVLLM_ENGRAM_REMOTE_BOUNCE=1\nVLLM_ENGRAM_REMOTE_KEY_FILE=/root/.cache/key"
    assert docker_env(_changed(spark, required=False), "B")["VLLM_ENGRAM_REMOTE_REQUIRED"] == "0"


def test_urls_follow_ranks_not_the_files_order(spark: Cluster) -> None:
    turned = spark.model_copy(update={"nodes": spark.nodes[::-1]})
    assert docker_env(turned, "B") == docker_env(spark, "B")


def test_the_prebuilds_environment_is_the_seeds(spark: Cluster) -> None:
    assert list(prebuild_env(spark).items()) == [
        ("TORCH_EXTENSIONS_DIR", "/root/.cache/torch_extensions"),
        ("MAX_JOBS", "4"),
        ("PYTHONPATH", "/root/.cache/dsv41-offload/offload/engram/spark/py"),
        ("DSV41_ENGRAM_OVERLAY", "/root/.cache/dsv41-offload/offload/engram/spark/engram.py"),
        ("VLLM_ENGRAM_REMOTE_ROOT", "/root/.cache/dsv41-offload"),
    ]


def test_the_serves_own_pythonpath_is_kept(spark: Cluster) -> None:
    found = serve_env(_with_environment(spark, {"PYTHONPATH": "/opt/plugin"}), "B")
    assert found["PYTHONPATH"] == "/root/.cache/dsv41-offload/offload/engram/spark/py:/opt/plugin"


def test_variables_of_b_in_the_serves_environment_are_refused(spark: Cluster) -> None:
    with pytest.raises(ConfigError, match="VLLM_ENGRAM_REMOTE_BOUNCE"):
        docker_env(_with_environment(spark, {"VLLM_ENGRAM_REMOTE_BOUNCE": "1"}), "A")


@pytest.mark.parametrize("bad", ["a b", "a\tb", "a\n", "\0", "\x7f", "\x1b[0m", "a\u00a0b", "\u2028", "\ud800"])
def test_values_that_would_not_arrive_are_refused_by_name(spark: Cluster, bad: str) -> None:
    with pytest.raises(ConfigError, match="variable MY_FLAG"):
        serve_env(_with_environment(spark, {"MY_FLAG": bad}), "A")
    with pytest.raises(ConfigError, match="VLLM_ENGRAM_REMOTE_KEY_FILE"):
        docker_env(_changed(spark, key_file=f"/k{bad}"), "B")


def test_a_refused_credential_does_not_show() -> None:
    with pytest.raises(ConfigError) as caught:
        check_values({"HF_TOKEN": "s3ntinel value"})
    assert "HF_TOKEN" in str(caught.value)
    assert "s3ntinel" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,12}", fullmatch=True), FIT, max_size=6))
def test_what_is_rendered_reads_back_by_whitespace_and_by_line(env: dict[str, str]) -> None:
    check_values(env)
    words = render_env(env).split()
    assert dict(word.partition("=")[::2] for word in words) == env


@settings(max_examples=40, deadline=None)
@given(FIT)
def test_a_value_that_passes_arrives_through_a_real_shell(value: str) -> None:
    check_values({"V": value})
    done = subprocess.run(
        ["env", f"V={value}", "sh", "-c", 'printf %s "$V"'],
        capture_output=True,
        check=True,
        env=dict(os.environ),
        timeout=10,
    )
    assert done.stdout.decode() == value


def test_homes_are_put_in(lab: Cluster) -> None:
    found = expand_env({**docker_env(lab, "B"), "PYTHONPATH": "~/a:/b:~/c"}, "/home/x")
    assert found["PYTHONPATH"] == "/home/x/a:/b:/home/x/c"
    assert found["DSV41_ENGRAM_OVERLAY"].startswith("/home/x/.cache/dsv41-serve/dsv41-offload/")


def test_the_arm_is_judged_by_the_real_environment(spark: Cluster) -> None:
    wanted = docker_env(spark, "B")
    assert arm_of(serve_env(spark, "A"), wanted) == "A"
    assert arm_of({**serve_env(spark, "B"), "PATH": "/bin"}, wanted) == "B"
    assert arm_of({**wanted, "VLLM_ENGRAM_REMOTE_TIMEOUT_MS": "7"}, wanted) == "other"
    assert arm_of({**wanted, "VLLM_ENGRAM_REMOTE_BOUNCE": "1"}, wanted) == "other"
    assert arm_of({name: value for name, value in wanted.items() if name != "PYTHONPATH"}, wanted) == "other"
    assert arm_of({"DSV41_ENGRAM_OVERLAY": "/x"}, wanted) == "other"


def test_credentials_are_masked() -> None:
    assert mask_env({"HF_TOKEN": "x", "A": "b"}) == {"HF_TOKEN": "****", "A": "b"}
