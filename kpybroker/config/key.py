"""Defines a setting: its name, type, default and range, and whether it may change while the broker runs.

Type codes and update modes are Kafka's (DescribeConfigs v3+, `kafka-configs`). A row is made by one of four functions:
`obeyed`, `mapped`, `harmless` or `refused`. The function defines the effect of the setting (see `Effect`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol

from kpybroker.errors import ConfigError

Value = bool | int | float | str | tuple[str, ...] | None
"""A parsed setting; a LIST is a tuple, an absent value is None."""

DURATION = re.compile(
    r"by_duration:P(?=[0-9T])([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+([.][0-9]+)?S)?)?", re.IGNORECASE
)
BLANKS = "".join(map(chr, range(33)))
"""The characters that Java trims. Other Unicode white space is part of a value."""
DECIMAL = re.compile(r"[+-]?(NaN|Infinity|([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?[dDfF]?)")
"""A number in a form that Java reads as a double, except hexadecimal numbers."""
COUNT = re.compile(r"[0-9]{1,10}")
SHOWN_MAX = 200
"""The most characters of a value that a message shows."""
LIMITS = {"INT": (-(1 << 31), (1 << 31) - 1), "SHORT": (-(1 << 15), (1 << 15) - 1), "LONG": (-(1 << 63), (1 << 63) - 1)}


class Kind(IntEnum):
    """The type of a setting, with the codes of DescribeConfigs v3+."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


BOOLEAN, STRING, INT, SHORT, LONG = Kind.BOOLEAN, Kind.STRING, Kind.INT, Kind.SHORT, Kind.LONG
DOUBLE, LIST, CLASS, PASSWORD = Kind.DOUBLE, Kind.LIST, Kind.CLASS, Kind.PASSWORD


class Mode(Enum):
    """How a broker setting may change while the broker runs (KIP-226): not at all, per broker, or also cluster-wide."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Effect(Enum):
    """The effect of giving a setting another value than its default.

    A setting may be harmless only if nobody relies on it: one that protects data or access (encryption, authentication,
    authorization, durability) is obeyed, mapped or refused.
    """

    OBEYED = "obeyed"
    """The broker uses it."""
    MAPPED = "mapped"
    """Another setting, with the same or a stronger guarantee, is used instead."""
    HARMLESS = "harmless"
    """Accepted, validated, stored and shown; nothing is less safe because the broker does not use it."""
    REFUSED = "refused"
    """It requires a protection that this broker does not provide: a start or a change with it fails."""


class Check(Protocol):
    """The range of a setting."""

    def refuse(self, value: Value) -> str | None:
        """The reason why this value is out of range, or None if it is valid."""

    def __str__(self) -> str: ...


class Between(NamedTuple):
    """A closed range; only `low` if `high` is None. `also` is one more allowed value outside of it."""

    low: float
    high: float | None = None
    also: float | None = None

    def refuse(self, value: Value) -> str | None:
        assert isinstance(value, int | float)
        if self.also is not None:
            within = value == self.also or self.low <= value <= (self.high or value)
            return None if within else f"Value must be between {self.low} and {self.high} or equal to {self.also}"
        if value < self.low:
            return f"Value must be at least {self.low}"
        if self.high is not None and value > self.high:
            return f"Value must be no more than {self.high}"
        return None

    def __str__(self) -> str:
        text = f"[{self.low},...]" if self.high is None else f"[{self.low},...,{self.high}]"
        return text if self.also is None else f"{text} or {self.also}"


class Positive(NamedTuple):
    """A number greater than 0, or infinity; used where Apache Kafka has no range and fails for other values."""

    def refuse(self, value: Value) -> str | None:
        assert isinstance(value, int | float)
        return None if value > 0 else "Value must be greater than 0"

    def __str__(self) -> str:
        return "(0,...]"


class OneOf(NamedTuple):
    """One of these words. Each element of a LIST must be one of them."""

    words: tuple[str, ...]
    any_case: bool = False

    def refuse(self, value: Value) -> str | None:
        items: Sequence[str]
        if isinstance(value, tuple):
            items = value
        else:
            assert isinstance(value, str)
            items = (value.upper(),) if self.any_case else (value,)
        for item in items:
            if item not in self.words:
                return f"String must be one of: {', '.join(self.words)}"
        return None

    def __str__(self) -> str:
        return f"[{', '.join(self.words)}]"


class NotEmpty(NamedTuple):
    """A string or list that must not be empty if it is set."""

    def refuse(self, value: Value) -> str | None:
        return None if value else "it must not be empty; omit it instead"

    def __str__(self) -> str:
        return "not empty"


class ThrottledReplicas(NamedTuple):
    """The replicas that a replication throttle applies to: `*`, or partition:broker pairs."""

    def refuse(self, value: Value) -> str | None:
        assert isinstance(value, tuple)
        if value == ("*",):
            return None
        for item in value:
            partition, colon, broker = item.partition(":")
            if not (colon and partition.strip().isdigit() and broker.strip().isdigit()):
                return "it must be the literal '*' or a list of [partitionId]:[brokerId]"
        return None

    def __str__(self) -> str:
        return "[partitionId]:[brokerId],... or *"


class HostCounts(NamedTuple):
    """`host:count` pairs; an IPv6 address may be written without brackets."""

    def refuse(self, value: Value) -> str | None:
        assert isinstance(value, str)
        for item in filter(None, (item.strip() for item in value.split(","))):
            host, _, count = item.rpartition(":")
            if not (host.strip() and COUNT.fullmatch(count.strip()) and int(count) <= LIMITS["INT"][1]):
                return "it must be a list of host:count"
        return None

    def __str__(self) -> str:
        return "host:count,..."


class OffsetReset(NamedTuple):
    """The position at which a share group starts to read (KIP-932, KIP-1106)."""

    def refuse(self, value: Value) -> str | None:
        assert isinstance(value, str)
        if value in ("earliest", "latest") or DURATION.fullmatch(value):
            return None
        return "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."

    def __str__(self) -> str:
        return "earliest, latest or by_duration:PnDTnHnMn.nS"


class ConfigKey(NamedTuple):
    """A row of the tables. `default` is the text that Kafka shows; None means no value. `doc` is our own remark.

    For a refused setting, `doc` has the reason and the remedy.
    """

    name: str
    kind: Kind
    default: str | None
    effect: Effect
    check: Check | None = None
    mode: Mode = Mode.READ_ONLY
    internal: bool = False
    doc: str | None = None
    unstable: bool = False
    """Of a feature that Apache Kafka 4.3 does not have: shown and changeable only with
    unstable.feature.versions.enable."""

    @property
    def attribute(self) -> str:
        """The name in the typed views."""
        return self.name.removeprefix("kpybroker.").replace(".", "_")

    @property
    def has_effect(self) -> bool:
        """Whether this broker behaves differently if the setting has another value."""
        return self.effect in (Effect.OBEYED, Effect.MAPPED)

    @property
    def sensitive(self) -> bool:
        return self.kind is Kind.PASSWORD

    @property
    def default_value(self) -> Value:
        """The typed default. It may be out of range (an empty list means that the setting is not set)."""
        return None if self.default is None else _convert(self.kind, self.default)

    def parse(self, text: str | None) -> Value:
        """The typed value; raises ConfigError with the key, the value and the expected range."""
        if text is None:
            return None
        reason = self.refusal(text)
        if reason is not None:
            shown = "[hidden]" if self.sensitive else text
            raise ConfigError(f"Invalid value {shown} for configuration {self.name}: {reason}")
        return _convert(self.kind, text)

    def asks(self, text: str) -> bool:
        """Whether a valid value is neither empty nor the default."""
        value = _convert(self.kind, text)
        return value not in ("", ()) and value != self.default_value

    def unprotected(self, text: str) -> str | None:
        """An error text if this valid value requires a protection that this broker does not provide, else None."""
        if self.effect is not Effect.REFUSED or not self.asks(text):
            return None
        return f"{self.name}={'[hidden]' if self.sensitive else text[:SHOWN_MAX]} cannot be applied: {self.doc}"

    def refusal(self, text: str) -> str | None:
        """An error text if this value is invalid, else None."""
        try:
            value = _convert(self.kind, text)
        except ValueError as error:
            return str(error)
        reason = self.check.refuse(value) if self.check is not None else None
        if reason is None and isinstance(value, tuple) and "" in value:
            return "values must not be empty"
        return reason


def _convert(kind: Kind, text: str) -> Value:
    trimmed = text.strip(BLANKS)
    match kind:
        case Kind.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise ValueError("Expected value to be either true or false")
            return trimmed.lower() == "true"
        case Kind.INT | Kind.SHORT | Kind.LONG:
            low, high = LIMITS[kind.name]
            digits = trimmed[1:] if trimmed[:1] in ("-", "+") else trimmed
            if not (digits.isascii() and digits.isdigit() and len(digits) < 40 and low <= int(trimmed) <= high):
                raise ValueError(f"Not a number of type {kind.name}")
            return int(trimmed)
        case Kind.DOUBLE:
            if not DECIMAL.fullmatch(trimmed):
                raise ValueError("Not a number of type DOUBLE")
            return float(trimmed.rstrip("dDfF"))
        case Kind.LIST:
            return tuple(item.strip() for item in trimmed.split(",")) if trimmed else ()
        case Kind.PASSWORD:
            return text
        case Kind.CLASS if not trimmed:
            raise ValueError("Class  could not be found.")
        case Kind.STRING | Kind.CLASS:
            return trimmed


def at_least(low: float) -> Between:
    return Between(low)


def between(low: float, high: float, also: float | None = None) -> Between:
    return Between(low, high, also)


def one_of(*words: str, any_case: bool = False) -> OneOf:
    return OneOf(words, any_case)


def obeyed(
    name: str,
    kind: Kind,
    default: str | None,
    check: Check | None = None,
    mode: Mode = Mode.READ_ONLY,
    *,
    internal: bool = False,
    unstable: bool = False,
    doc: str | None = None,
) -> ConfigKey:
    """A setting that the broker uses."""
    return ConfigKey(name, kind, default, Effect.OBEYED, check, mode, internal, doc, unstable)


def mapped(
    name: str,
    kind: Kind,
    default: str | None,
    check: Check | None = None,
    mode: Mode = Mode.READ_ONLY,
    *,
    doc: str,
) -> ConfigKey:
    """A setting that is replaced by another one; `doc` names it."""
    return ConfigKey(name, kind, default, Effect.MAPPED, check, mode, False, doc)


def harmless(
    name: str,
    kind: Kind,
    default: str | None,
    check: Check | None = None,
    mode: Mode = Mode.READ_ONLY,
    *,
    internal: bool = False,
    doc: str | None = None,
) -> ConfigKey:
    """A setting that is stored and shown, but has no effect here."""
    return ConfigKey(name, kind, default, Effect.HARMLESS, check, mode, internal, doc)


def refused(
    name: str,
    kind: Kind,
    default: str | None,
    check: Check | None = None,
    mode: Mode = Mode.READ_ONLY,
    *,
    doc: str,
) -> ConfigKey:
    """A setting that requires a protection that is not available here; `doc` has the reason and the remedy."""
    return ConfigKey(name, kind, default, Effect.REFUSED, check, mode, False, doc)
