"""Tests that regular expressions match whole names, are evaluated in steps, and have limits."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.consumer import subscription_regex
from kpybroker.groups.consumer.subscription_regex import (
    ASKING_IN_NAMES,
    COMPILED_KEPT,
    COMPILING_IN_NAMES,
    LENGTH_MAX,
    NAMES_A_STEP,
    RegexResolution,
    compiled,
)
from kpybroker.groups.consumer.transitions import RESOLVE_AGAIN_MS
from kpybroker.groups.ground.commands import ConsumerHeartbeat, MayDescribe
from kpybroker.wire.rpc import consumer_group_heartbeat
from tests.groups.stage import Stage


def resolved(
    regexes: list[str], names: list[str], may_describe: MayDescribe | None = None
) -> tuple[Mapping[str, set[str]], int]:
    """The matching names, and the number of steps."""
    resolving = RegexResolution(regexes, names, may_describe)
    steps = 1
    while (found := resolving.step()) is None:
        steps += 1
    return found, steps


@pytest.mark.parametrize(
    ("regex", "matches"),
    [
        ("t.*", {"ta", "tb"}),
        ("t", set()),
        ("(?i)TA", {"ta"}),
        ("ta|other", {"ta", "other"}),
        ("", set()),
        (r"\Qt\Ea|\Q\C\E", {"ta"}),
    ],
)
def test_expressions_match_whole_names(regex: str, matches: set[str]) -> None:
    assert resolved([regex], ["ta", "tb", "other"])[0] == {regex: matches}


@pytest.mark.parametrize(
    "regex",
    [
        "(",
        "[",
        "a(?=b)",
        r"(a)\1",
        "a{1001}",
        "(a{1000}){1000}",
        "(?i:[a-z]{900}\\pL{80}x7)",
        r"a\C",
        "x" * (LENGTH_MAX + 1),
    ],
)
def test_invalid_and_exploding_expressions_are_refused(regex: str) -> None:
    with pytest.raises(KafkaError, match="INVALID_REGULAR_EXPRESSION"):
        compiled(regex)


def test_many_names_are_tried_in_steps() -> None:
    names = [f"t{number}" for number in range(2 * NAMES_A_STEP)]
    found, steps = resolved(["t.*", ".*9"], names)
    assert steps == 5, "the last one finds that nothing is left"
    assert found["t.*"] == set(names)
    assert found[".*9"] == {name for name in names if name.endswith("9")}


@pytest.mark.parametrize("allowed", [0, 1, NAMES_A_STEP // 3, 2 * NAMES_A_STEP])
def test_only_names_are_found_that_may_be_described(allowed: int) -> None:
    """Rights are checked only for names that match, and a check counts as work."""
    names = [f"t{number}" for number in range(2 * NAMES_A_STEP)]
    asked = set()

    def may_describe(name: str) -> bool:
        asked.add(name)
        return name in names[:allowed]

    found, steps = resolved(["t.*[05]", "none"], [*names, "other"], may_describe)
    every = {name for name in names if name[-1] in "05"}
    assert asked == every
    assert found == {"t.*[05]": every & set(names[:allowed]), "none": set()}
    assert steps > len(every) * ASKING_IN_NAMES / NAMES_A_STEP


def test_many_expressions_are_compiled_in_steps() -> None:
    regexes = [f"t{number}|a" for number in range(2 * COMPILED_KEPT)]
    found, steps = resolved(regexes, ["t1", "a"])
    assert steps > len(regexes) * COMPILING_IN_NAMES / NAMES_A_STEP / 2
    assert found["t1|a"] == {"t1", "a"}
    assert found["t2|a"] == {"a"}


def test_without_re2_expressions_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own `re` must not be used instead: the broker could hang on an expression that RE2 evaluates in linear
    time."""
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(KafkaError, match=r"INVALID_REGULAR_EXPRESSION.*pip install 'kpybroker\[regex\]'"):
        compiled("without-re2.*")


def test_an_expression_that_others_accepted_does_not_hold_up_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of Apache Kafka, or of a broker with RE2, may contain such an expression. Its previous result stays
    valid."""
    names = [f"t{number}" for number in range(2 * NAMES_A_STEP)]
    assert resolved([r"a\C", "t1"], names)[0] == {"t1": {"t1"}}
    monkeypatch.setitem(sys.modules, "re2", None)
    assert resolved(["never-seen-1.*", "never-seen-2.*"], names)[0] == {}


def test_an_expression_that_others_accepted_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's timer fires only once, so time advances."""
    stage = Stage()
    stage.topic("t", 1)
    request = consumer_group_heartbeat.Request(
        group_id="g", member_id="a", rebalance_timeout_ms=1, subscribed_topic_regex="t.*", topic_partitions=[]
    )
    stage.answer(ConsumerHeartbeat(request, "c", "/127.0.0.1"))

    def refuse(regex: str) -> None:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, regex)

    monkeypatch.setattr(subscription_regex, "compiled", refuse)
    stage.wait(RESOLVE_AGAIN_MS)
    assert not stage.machine.kinds["consumer"].groups["g"].resolved
