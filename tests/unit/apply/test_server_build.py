"""`server build` with the real cmake, ninja and g++, on a project of two lines."""

import subprocess
from pathlib import Path

import pytest

from dsv41ctl.apply import server_build
from dsv41ctl.errors import CommandFailed, HostError
from dsv41ctl.plan import Word

CMAKE = """cmake_minimum_required(VERSION 3.20)
project(x LANGUAGES CXX)
add_executable(engram_server server/main.cpp)
add_executable(engram_check tools/engram_check.cpp)
"""


@pytest.fixture
def project(tiny):
    native = tiny.root / "native"
    (native / "CMakeLists.txt").write_text(CMAKE)
    (native / "server/main.cpp").write_text("int main() { return 11; }\n")
    (native / "tools/engram_check.cpp").write_text("int main() { return 12; }\n")
    tiny.changed("table_hosts", binary="engram_server")
    return tiny


def _status(tiny) -> list[int]:
    programs = [tiny.home("t0") / "o/bin" / name for name in ("engram_server", "engram_check")]
    return [subprocess.run([str(program)], check=False, timeout=10).returncode for program in programs]


def test_built_once_and_again_only_for_new_sources(project) -> None:
    assert project.run(server_build).word is Word.CHANGED
    assert _status(project) == [11, 12]
    assert project.run(server_build).word is Word.UNCHANGED
    assert project.run(server_build, dry_run=True).word is Word.UNCHANGED
    (project.root / "native/server/main.cpp").write_text("int main() { return 21; }\n")
    changed = [step.title for step in project.run(server_build).steps if step.word is Word.CHANGED]
    assert changed[0] == "put server/main.cpp"
    assert not any(title.startswith("put ") for title in changed[1:])
    assert _status(project) == [21, 12]


def test_a_binary_that_was_replaced_is_built_again(project) -> None:
    project.run(server_build)
    (project.home("t0") / "o/bin/engram_server").write_bytes(b"somebody else's")
    assert project.run(server_build).word is Word.CHANGED
    assert _status(project) == [11, 12]


def test_a_compile_error_is_the_message_and_the_old_binary_stays(project) -> None:
    project.run(server_build)
    (project.root / "native/server/main.cpp").write_text("int main() { return broken; }\n")
    with pytest.raises(CommandFailed, match=r"main\.cpp:1:\d+: error: .*broken") as caught:
        project.run(server_build)
    assert caught.value.host == "t0"
    assert _status(project) == [11, 12]
    (project.root / "native/server/main.cpp").write_text("int main() { return 31; }\n")
    project.run(server_build)
    assert _status(project) == [31, 12]


@pytest.mark.parametrize("what", ["header", "package"])
def test_what_is_missing_is_named_with_its_packages(project, what: str) -> None:
    if what == "header":
        (project.root / "native/server/main.cpp").write_text("#include <no_such_header.h>\nint main() {}\n")
    else:
        (project.root / "native/CMakeLists.txt").write_text(CMAKE + "find_package(nlohmann_no_such REQUIRED)\n")
    with pytest.raises(HostError, match="no_such") as caught:
        project.run(server_build)
    assert "apt-get install cmake ninja-build g++ libssl-dev" in str(caught.value.hint)


def test_missing_tools_are_named(project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "find", "sha256sum", "g++", "cat", "mkdir", "dirname", "env"):
        (tools / name).symlink_to(Path("/usr/bin") / name)
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(HostError, match="cannot build: cmake, ninja missing"):
        project.run(server_build)


def test_a_binary_given_by_path_is_not_built(tiny) -> None:
    assert tiny.run(server_build).word is Word.UNCHANGED


def test_the_operators_own_build_directory_is_used(project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    native, build = project.root / "native", tmp_path / "build"
    monkeypatch.setenv("DSV41_NATIVE_BUILD", str(build))
    subprocess.run(
        ["cmake", "-S", str(native), "-B", str(build), "-G", "Ninja"], check=True, timeout=60, capture_output=True
    )
    outcome = project.run(server_build)
    assert [step.title for step in outcome.steps] == [
        f"build engram_server in {build}", f"install engram_check, engram_server from {build}",
    ]  # fmt: skip
    assert _status(project) == [11, 12]
    assert project.run(server_build).word is Word.UNCHANGED
    (native / "server/main.cpp").write_text("int main() { return 41; }\n")
    assert project.run(server_build).word is Word.CHANGED
    assert _status(project) == [41, 12]


def test_a_build_directory_of_other_sources_is_not_used(
    project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "CMakeCache.txt").write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/somewhere/else\n")
    monkeypatch.setenv("DSV41_NATIVE_BUILD", str(other))
    assert "configure" in [step.title for step in project.run(server_build).steps]
    assert _status(project) == [11, 12]
