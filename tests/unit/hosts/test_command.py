import json
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41ctl.hosts import Secret, masked, pair, real, shell, shown
from dsv41ctl.hosts.command import is_secret_name

SENTINEL = "s3ntinel-value"
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=6))
def test_a_shell_gives_the_words_back(words: list[str]) -> None:
    script = 'for word in "$@"; do printf "%s\\0" "$word"; done'
    line = shell(("sh", "-c", script, "sh", *words))
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True, timeout=10)
    assert done.stdout.decode().split("\0")[:-1] == words


@settings(max_examples=30, deadline=None)
@given(st.lists(WORDS.filter(lambda word: "$HOME" not in word), min_size=1, max_size=4))
def test_what_is_shown_can_be_pasted(words: list[str]) -> None:
    words = [word for word in words if word != "****"]
    script = 'for word in "$@"; do printf "%s\\0" "$word"; done'
    line = shown(("sh", "-c", script, "sh", *words))
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True, timeout=10)
    assert done.stdout.decode().split("\0")[:-1] == words


def test_a_secret_runs_real_and_shows_masked() -> None:
    command = ("docker", "run", "-e", pair("HF_TOKEN", SENTINEL), Secret(SENTINEL), "image")
    assert real(command) == ["docker", "run", "-e", f"HF_TOKEN={SENTINEL}", SENTINEL, "image"]
    assert masked(command) == ["docker", "run", "-e", "HF_TOKEN=****", "****", "image"]
    shows = [
        shown(command),
        repr(command),
        str(command),
        f"{command[3]}",
        f"{command[4]:>8}",
        json.dumps(masked(command)),
    ]
    assert not any(SENTINEL in text for text in shows)


def test_only_the_home_that_is_not_known_stays_unquoted() -> None:
    assert shown(("-v", "$HOME/.cache:/root/.cache")) == "-v $HOME/.cache:/root/.cache"
    assert shown(("$HOME/a b",)) == "'$HOME/a b'"
    assert shown(("$OTHER",)) == "'$OTHER'"


def test_names_of_credentials() -> None:
    assert all(is_secret_name(name) for name in ("HF_TOKEN", "API_KEY", "OPENAI_APIKEY", "DB_PASSWORD", "MY_SECRET_X"))
    assert not any(
        is_secret_name(name) for name in ("VLLM_ENGRAM_REMOTE_KEY_FILE", "PYTHONPATH", "TOKENIZERS_PARALLELISM")
    )
