"""The variables of the serve: what configuration B adds, in the seed's order and value format."""

import re
from collections.abc import Mapping

from dsv41ctl.config import Cluster
from dsv41ctl.errors import ConfigError
from dsv41ctl.hosts.command import is_secret_name
from dsv41ctl.hosts.protocol import expand_home
from dsv41ctl.plan.steps import Arm

__all__ = [
    "OVERLAY_VARIABLE",
    "PY_DIR",
    "REMOTE_VARIABLE",
    "arm_of",
    "base_env",
    "check_values",
    "docker_env",
    "expand_env",
    "is_b_variable",
    "mask_env",
    "prebuild_env",
    "render_env",
    "serve_env",
]

OVERLAY_VARIABLE = "DSV41_ENGRAM_OVERLAY"
REMOTE_VARIABLE = "VLLM_ENGRAM_REMOTE"
PY_DIR = "offload/engram/spark/py"
_OVERLAY = "offload/engram/spark/engram.py"

# The seed prints these on one line.
_NUMERIC = tuple(f"{REMOTE_VARIABLE}_{name}" for name in ("TIMEOUT_MS", "RETRY_MS", "REQUIRED", "LOG_S"))
# The launcher splits DOCKER_ENV at whitespace, and neither docker nor a shell line carries control characters.
_UNFIT = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")


def is_b_variable(name: str) -> bool:
    """Whether a variable belongs to configuration B alone. PYTHONPATH is shared, and judged by its value."""
    return name in (OVERLAY_VARIABLE, REMOTE_VARIABLE) or name.startswith(f"{REMOTE_VARIABLE}_")


def docker_env(cluster: Cluster, arm: Arm) -> dict[str, str]:
    """What an arm adds to the serve's environment: nothing for A, the seed's block for B.

    Raises:
        ConfigError: a value that the launcher could not carry, or the serve's own environment names B's variables.
    """
    stray = sorted(name for name in cluster.serve.environment if is_b_variable(name))
    if stray:
        raise ConfigError(
            f"serve.environment sets {', '.join(stray)}: then A would not be A",
            hint=f"remove {stray[0]} from serve.environment",
        )
    check_values(cluster.serve.environment)
    if arm == "A":
        return {}
    remote = cluster.remote
    env = _staged_env(cluster)
    env[REMOTE_VARIABLE] = ",".join(node.link.url for node in cluster.by_rank)
    env[f"{REMOTE_VARIABLE}_TIMEOUT_MS"] = str(remote.timeout_ms)
    env[f"{REMOTE_VARIABLE}_RETRY_MS"] = str(remote.retry_ms)
    env[f"{REMOTE_VARIABLE}_REQUIRED"] = str(int(remote.required))
    env[f"{REMOTE_VARIABLE}_LOG_S"] = str(remote.log_s)
    if remote.bounce:
        env[f"{REMOTE_VARIABLE}_BOUNCE"] = "1"
    if remote.key_file is not None:
        env[f"{REMOTE_VARIABLE}_KEY_FILE"] = remote.key_file
    check_values(env)
    return env


def _staged_env(cluster: Cluster) -> dict[str, str]:
    """The three variables that point into the staged tree."""
    root = cluster.paths.stage_in_container
    own = cluster.serve.environment.get("PYTHONPATH")
    return {
        "PYTHONPATH": f"{root}/{PY_DIR}" + (f":{own}" if own else ""),
        OVERLAY_VARIABLE: f"{root}/{_OVERLAY}",
        f"{REMOTE_VARIABLE}_ROOT": root,
    }


def base_env(cluster: Cluster) -> dict[str, str]:
    """What both arms share, so that they differ in B's variables alone.

    Raises:
        ConfigError: a value that the launcher could not carry.
    """
    env = {"TORCH_EXTENSIONS_DIR": cluster.paths.extensions_in_container, **cluster.serve.environment}
    check_values(env)
    return env


def serve_env(cluster: Cluster, arm: Arm) -> dict[str, str]:
    """The whole environment that the cluster file gives the serve; `~/` is not expanded."""
    return base_env(cluster) | docker_env(cluster, arm)


def prebuild_env(cluster: Cluster) -> dict[str, str]:
    """The environment of the prebuild, in the seed's order."""
    env = {
        "TORCH_EXTENSIONS_DIR": cluster.paths.extensions_in_container,
        "MAX_JOBS": str(cluster.serve.max_jobs),
        **_staged_env(cluster),
    }
    check_values(env)
    return env


def check_values(env: Mapping[str, str]) -> None:
    """Refuses values that would not arrive as they are.

    Raises:
        ConfigError: names the variable.
    """
    for name, value in env.items():
        found = _UNFIT.search(value)
        # A credential must not show up in the message that refuses it.
        shown = "its value" if is_secret_name(name) else repr(value)
        if found:
            raise ConfigError(
                f"variable {name}: {shown} has {found[0]!r} at position {found.start()}; "
                "the launcher splits its environment at whitespace"
            )
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(f"variable {name}: {shown} is not text that can be encoded") from error


def render_env(env: Mapping[str, str]) -> str:
    """One `NAME=value` a line, as the seed prints it: the four numeric variables share a line."""
    lines: list[str] = []
    numeric = [f"{name}={env[name]}" for name in _NUMERIC if name in env]
    for name, value in env.items():
        if name in _NUMERIC:
            if numeric:
                lines.append(" ".join(numeric))
                numeric = []
            continue
        lines.append(f"{name}={value}")
    return "\n".join(lines)


def expand_env(env: Mapping[str, str], home: str) -> dict[str, str]:
    """`~/` taken as the host's home, also after each colon of PYTHONPATH."""
    expanded = {name: expand_home(value, home) for name, value in env.items()}
    if "PYTHONPATH" in env:
        expanded["PYTHONPATH"] = ":".join(expand_home(part, home) for part in env["PYTHONPATH"].split(":"))
    return expanded


def mask_env(env: Mapping[str, str]) -> dict[str, str]:
    """An environment that may be shown."""
    return {name: "****" if is_secret_name(name) else value for name, value in env.items()}


def arm_of(environment: Mapping[str, str], wanted_b: Mapping[str, str]) -> str:
    """The configuration of a running serve, judged by its real environment.

    Args:
        environment: read back from the host.
        wanted_b: B's variables as they must read back there.

    Returns:
        `A`, `B`, or `other`: B's variables, but not with the cluster file's values.
    """
    present = {name for name in environment if is_b_variable(name)}
    if not present:
        return "A"
    same = all(environment.get(name) == value for name, value in wanted_b.items())
    return "B" if same and present == {name for name in wanted_b if is_b_variable(name)} else "other"
