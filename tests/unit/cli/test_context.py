from hypothesis import given
from hypothesis import strategies as st

from dsv41ctl.cli.context import GLOBAL_FLAGS, GLOBAL_VALUES, hoist


def test_global_options_may_follow_the_verb() -> None:
    assert hoist(["env", "--arm", "B", "--json", "--cluster", "x.toml"]) == [
        "--json", "--cluster", "x.toml", "env", "--arm", "B",
    ]  # fmt: skip
    assert hoist(["env", "--cluster=x.toml"]) == ["--cluster=x.toml", "env"]


def test_a_double_dash_ends_it() -> None:
    assert hoist(["run", "--", "--json"]) == ["run", "--", "--json"]


@given(st.lists(st.sampled_from(["a", "--json", "--yes", "--cluster", "f", "--", "--arm", "--cluster=z"])))
def test_nothing_is_lost_and_order_is_kept(argv: list[str]) -> None:
    out = hoist(argv)
    assert sorted(out) == sorted(argv)
    own = [word for word in out if word not in GLOBAL_FLAGS | GLOBAL_VALUES and "=" not in word and word != "f"]
    assert (
        own == [word for word in argv if word not in GLOBAL_FLAGS | GLOBAL_VALUES and "=" not in word and word != "f"]
        or "--cluster" in argv
    )
