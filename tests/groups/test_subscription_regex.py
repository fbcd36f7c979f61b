"""Regular expressions match whole names, are tried in steps, and have limits."""

from __future__ import annotations

import pytest

from kpybroker.errors import KafkaError
from kpybroker.groups.subscription_regex import LENGTH_MAX, NAMES_A_STEP, Resolving, compiled


@pytest.mark.parametrize(
    ("regex", "matches"),
    [("t.*", {"ta", "tb"}), ("t", set()), ("(?i)TA", {"ta"}), ("ta|other", {"ta", "other"}), ("", set())],
)
def test_expressions_match_whole_names(regex: str, matches: set[str]) -> None:
    assert Resolving([regex], ["ta", "tb", "other"]).step() == {regex: matches}


@pytest.mark.parametrize("regex", ["(", "[", "a(?=b)", r"(a)\1", "a{1001}", "(a{1000}){1000}", "x" * (LENGTH_MAX + 1)])
def test_what_does_not_compile_or_explodes_is_refused(regex: str) -> None:
    with pytest.raises(KafkaError, match="INVALID_REGULAR_EXPRESSION"):
        compiled(regex)


def test_many_names_are_tried_in_steps() -> None:
    names = [f"t{number}" for number in range(2 * NAMES_A_STEP)]
    resolving = Resolving(["t.*", ".*9"], names)
    steps = 1
    while (found := resolving.step()) is None:
        steps += 1
    assert steps == 5
    assert found["t.*"] == set(names)
    assert found[".*9"] == {name for name in names if name.endswith("9")}
