"""Tests of contradicting settings: kpybroker accepts and refuses them at its start as Apache Kafka 4.3.1 does.

`answers-4.3.1.tsv` contains Apache Kafka's results (`compat_tests/test_settings.py` checks them again): one line per
properties file, whose settings override FILE.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kpybroker.config import parse_config
from kpybroker.config.broker_keys import BROKER_KEYS
from kpybroker.config.contradictions import BELOW, CODECS, NOT_ABOVE, NOT_EMPTY, contradictions
from kpybroker.config.dynamic import why_unusable
from kpybroker.config.effect import BROKER
from kpybroker.config.key import Effect, Kind
from kpybroker.errors import ConfigError

FILE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "log.dirs": "/nosuch/data",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://127.0.0.1:19999,CONTROLLER://127.0.0.1:19998",
    "controller.quorum.voters": "1@127.0.0.1:19998",
}
ANSWERS = [line.split("\t") for line in (Path(__file__).parent / "answers-4.3.1.tsv").read_text().splitlines()]
LAGS = "log.cleaner.min.compaction.lag.ms=51 log.cleaner.max.compaction.lag.ms=50"
"""Kafka accepts these settings, but then cannot create the topic of groups."""


def given(line: str) -> dict[str, str]:
    return {name: value for name, _, value in (setting.partition("=") for setting in line.split())}


def is_refused(line: str) -> bool:
    """Whether a setting in the line requests a protection that kpybroker does not provide."""
    return any(
        BROKER_KEYS[name].effect is Effect.REFUSED and BROKER_KEYS[name].asks(text)
        for name, text in given(line).items()
    )


@pytest.mark.parametrize("line", [line for answer, line in ANSWERS if answer == "taken"])
def test_settings_that_kafka_accepts_are_accepted(line: str) -> None:
    if is_refused(line):
        with pytest.raises(ConfigError, match="cannot be applied"):
            parse_config({**FILE, **given(line)})
        return
    assert not list(contradictions(parse_config({**FILE, **given(line)})))


@pytest.mark.parametrize("line", [LAGS, *(line for answer, line in ANSWERS if answer == "refused")])
def test_settings_that_kafka_refuses_are_refused_with_names_and_values(line: str) -> None:
    settings = given(line)
    with pytest.raises(ConfigError) as refused:
        parse_config({**FILE, **settings}, "server.properties")
    message = str(refused.value)
    assert any(name in message and (value in message or "," in value) for name, value in settings.items()), message


def test_there_are_answers_on_both_sides_of_every_rule() -> None:
    refused = {name for answer, line in ANSWERS if answer == "refused" for name in given(line)} | set(given(LAGS))
    taken = {name for answer, line in ANSWERS if answer == "taken" for name in given(line)}
    for pair in (*NOT_ABOVE, *BELOW):
        assert refused.intersection(pair), pair
        assert taken.intersection(pair), pair
    assert refused >= {*CODECS, *NOT_EMPTY}


def test_a_contradiction_names_all_its_settings() -> None:
    """A change that touches none of these names is not refused because of the contradiction."""
    for line in [LAGS, *(line for answer, line in ANSWERS if answer == "refused")]:
        settings = given(line)
        static = {name: text for name, text in settings.items() if BROKER_KEYS[name].mode.value != "cluster-wide"}
        dynamic = {name: text for name, text in settings.items() if name not in static}
        try:
            before = parse_config({**FILE, **static})
        except ConfigError:
            continue
        if any(why_unusable(BROKER, name, text) for name, text in dynamic.items()):
            continue
        assert any(set(dynamic) & set(found.names) for found in contradictions(before.with_dynamic(dynamic, {}))), line


def test_every_pair_is_of_numbers() -> None:
    assert all(BROKER_KEYS[name].kind in (Kind.INT, Kind.LONG) for pair in (*NOT_ABOVE, *BELOW) for name in pair)
