"""Tests that properties files are parsed as in Java, and that errors name the mistakes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.config import parse_config, parse_properties, parse_setting
from kpybroker.config.broker_keys import BROKER_KEYS
from kpybroker.errors import ConfigError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def test_every_form_of_a_line() -> None:
    text = "# note\n! note\n\n a = 1\nb:2\nc 3\n d=x \\\n    y\ne\nf\\ g\\=h = \\u00e4\\t|\\\\\r\ni=1\ni=2\n=v\n"
    assert parse_properties(text, "file") == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "x y",
        "e": "",
        "f g=h": "ä\t|\\",
        "i": "2",
        "": "v",
    }


def _escaped(text: str, separators: str) -> str:
    """As java.util.Properties.store writes it."""
    short = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
    return "".join(short.get(char) or ("\\" + char if char in separators + "\\#!" else char) for char in text)


@given(st.dictionaries(TEXT.filter(bool), TEXT, max_size=5))
def test_stored_properties_are_read_back(settings: dict[str, str]) -> None:
    lines = [f"{_escaped(name, ' =:')}={_escaped(value, ' ')}" for name, value in settings.items()]
    assert parse_properties("\n".join(lines), "file") == settings


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert _refusal(lambda: parse_properties(text, "file")).startswith("file, line ")


def _refusal(read: Callable[[], object]) -> str:
    """The text of the error; if there is no error, a prefix of a valid text."""
    try:
        read()
    except ConfigError as error:
        return str(error)
    return "file, line "


def test_bad_escape_and_huge_file_are_refused_with_the_place() -> None:
    with pytest.raises(ConfigError, match=r"server.properties, line 2: .*four hexadecimal"):
        parse_properties("a=1\nb=\\u12xy\n", "server.properties")
    with pytest.raises(ConfigError, match="larger than"):
        parse_properties("#" * ((1 << 20) + 1), "server.properties")


def test_settings_of_the_command_line() -> None:
    assert parse_setting(" num.partitions = 3 ") == ("num.partitions", "3")
    assert parse_setting("a=b=c") == ("a", "b=c")
    for text in ("num.partitions", "=3", ""):
        with pytest.raises(ConfigError, match="write name=value"):
            parse_setting(text)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num.partitons", "did you mean num.partitions"),
        ("log.retention.hour", "did you mean log.retention.hours"),
        ("zookeeper.connect", "ZooKeeper"),
        ("retention.ms", "log.retention.ms"),
        ("kpybroker.fsnyc", "kpybroker.fsync"),
        ("qqqqqqqq", r"unknown setting \[hidden, 8 characters\]; see"),
        ("qqq.qqqqq", "unknown setting qqq.qqqqq; see"),
        ("ssl.key.password=secret", r"unknown setting ssl.key.password\[hidden\]"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        parse_config({name: "1"}, "server.properties")


@given(st.sampled_from(sorted(BROKER_KEYS)), st.text(max_size=20))
def test_any_value_is_accepted_or_refused_by_name(name: str, value: str) -> None:
    also = ("log.dirs", "node.id", "listeners", "advertised.listeners", "controller.quorum.voters", "file, line ")
    refusal = _refusal(lambda: parse_config({name: value}))
    assert any(text in refusal for text in (name, *also)), refusal
