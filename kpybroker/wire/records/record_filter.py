"""A small language that selects records, such as `header.region == "eu" and not tombstone`.

- `header.NAME`, `header."any name"`, `tag` (short for `header.tag`) and `key` are compared with text in double or
  single quotes: `== "a"`, `!= "a"`, `in ("a", "b")`, `prefix "a"`. Of several headers with the same name, the last one
  counts. A header or key that is missing or null equals no text, so that `!=` is true for it.
- `exists header.NAME` and `exists key` are true if the record has it, and it is not null.
- `timestamp` is compared (`==`, `!=`, `<`, `<=`, `>`, `>=`) with milliseconds since the epoch, or with a time in
  quotes, in ISO 8601; without an offset, it is in UTC.
- `tombstone` is true if the value is null.
- These are combined with `not`, `and`, `or` and parentheses, of which `not` binds most and `or` least.

The size of an expression is limited, and there are no loops and no regular expressions, so that its cost for each
record is bounded.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from kpybroker.errors import ConfigError
from kpybroker.similar_names import meant
from kpybroker.wire.records.batch import Record

TEXT_MAX = 4000
"""The most characters of an expression."""
DEPTH_MAX = 50
"""How deep parentheses and `not` may be nested."""
Predicate = Callable[[Record], bool]
_TOKEN = re.compile(
    r"""\s*(?:(?P<word>[A-Za-z_][\w.-]*)|(?P<number>-?\d+)|(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|"""
    r"""(?P<symbol>[=!<>]=|[=<>(),]))""",
    re.ASCII | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ORDER: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
HEADER = "header."
TAG = "tag"
FIELDS = ("header.NAME", TAG, "key", "timestamp", "tombstone", "exists")
OPERATORS = ("==", "!=", "in", "prefix")


class RecordFilter(NamedTuple):
    """A filter that has been read. `text` is its expression."""

    text: str
    matches: Predicate
    """Whether a record is selected."""

    def __str__(self) -> str:
        return self.text


def parse_filter(text: str) -> RecordFilter:
    """Read an expression. Raises ConfigError with the place and the reason."""
    if len(text) > TEXT_MAX:
        raise ConfigError(f"an expression of {len(text)} characters; at most {TEXT_MAX}")
    parser = _Parser(text)
    predicate = parser.either(0)
    parser.end()
    return RecordFilter(text, predicate)


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    """A parser by recursive descent. The methods return predicates, and raise ConfigError."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[_Token] = []
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                what = "the text has no end" if text[at] in "\"'" else f"cannot read {text[at]!r}"
                raise ConfigError(f"{what}, at character {at + 1} of {text!r}")
            kind = found.lastgroup or ""
            self._tokens.append(_Token(kind, found[kind], found.start(kind)))
            at = found.end()
        self._tokens.append(_Token("end", "", len(text)))
        self._next = 0

    def either(self, depth: int) -> Predicate:
        terms = [self._both(depth)]
        while self._takes("or"):
            terms.append(self._both(depth))
        return terms[0] if len(terms) == 1 else lambda record: any(term(record) for term in terms)

    def _both(self, depth: int) -> Predicate:
        terms = [self._negated(depth)]
        while self._takes("and"):
            terms.append(self._negated(depth))
        return terms[0] if len(terms) == 1 else lambda record: all(term(record) for term in terms)

    def _negated(self, depth: int) -> Predicate:
        if depth > DEPTH_MAX:
            raise self._wrong(f"nested more than {DEPTH_MAX} deep")
        if self._takes("not"):
            term = self._negated(depth + 1)
            return lambda record: not term(record)
        if self._takes("("):
            term = self.either(depth + 1)
            self._needs(")")
            return term
        return self._comparison()

    def _comparison(self) -> Predicate:
        if self._takes("tombstone"):
            return lambda record: record.value is None
        if self._takes("timestamp"):
            return self._time_comparison()
        if self._takes("exists"):
            found = self._field()
            return lambda record: found(record) is not None
        found = self._field()
        if self._takes("=="):
            wanted = self._content()
            return lambda record: found(record) == wanted
        if self._takes("!="):
            wanted = self._content()
            return lambda record: found(record) != wanted
        if self._takes("prefix"):
            return _starts_with(found, self._content())
        if self._takes("in"):
            self._needs("(")
            several = {self._content()}
            while self._takes(","):
                several.add(self._content())
            self._needs(")")
            return lambda record: found(record) in several
        raise self._wrong(f"expected one of {', '.join(OPERATORS)}")

    def _time_comparison(self) -> Predicate:
        compare = _ORDER.get(self._now.text)
        if compare is None:
            raise self._wrong(f"expected one of {', '.join(_ORDER)}")
        self._next += 1
        token = self._now
        if token.kind == "number":
            wanted = int(token.text)
        elif token.kind == "text":
            wanted = self._time(token)
        else:
            raise self._wrong("expected milliseconds, or a time in quotes")
        self._next += 1
        return lambda record: compare(record.timestamp, wanted)

    def _time(self, token: _Token) -> int:
        try:
            time = datetime.fromisoformat(_unquoted(token.text))
        except ValueError:
            raise self._wrong("not a time; write it like '2026-01-31T12:00:00Z'") from None
        return round((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)

    def _field(self) -> Callable[[Record], bytes | None]:
        token = self._now
        if self._takes("key"):
            return lambda record: record.key
        if self._takes(TAG):
            return _header(TAG)
        if token.kind == "word" and token.text.startswith(HEADER):
            self._next += 1
            name = token.text.removeprefix(HEADER)
            if name:
                return _header(name)
            if self._now.kind == "text":
                self._next += 1
                return _header(_unquoted(self._tokens[self._next - 1].text))
        known = ["header", *FIELDS[1:]]
        raise self._wrong(
            f"expected one of {', '.join(FIELDS)}{meant(token.text.split('.')[0], known) if token.text else ''}", token
        )

    def _content(self) -> bytes:
        token = self._now
        if token.kind != "text":
            raise self._wrong("expected text in quotes")
        self._next += 1
        return _unquoted(token.text).encode()

    @property
    def _now(self) -> _Token:
        return self._tokens[self._next]

    def _takes(self, text: str) -> bool:
        is_it = self._now.kind != "text" and self._now.text == text
        self._next += is_it
        return is_it

    def _needs(self, text: str) -> None:
        if not self._takes(text):
            raise self._wrong(f"expected {text}")

    def end(self) -> None:
        """Raises ConfigError if there is more."""
        if self._now.kind != "end":
            raise self._wrong("expected and, or, or the end")

    def _wrong(self, reason: str, token: _Token | None = None) -> ConfigError:
        at = self._now if token is None else token
        found = f"found {at.text}" if at.text else "found the end"
        return ConfigError(f"{reason}, {found}, at character {at.at + 1} of {self._text!r}")


def _unquoted(text: str) -> str:
    return _ESCAPE.sub(r"\1", text[1:-1])


def _starts_with(found: Callable[[Record], bytes | None], wanted: bytes) -> Predicate:
    def starts(record: Record) -> bool:
        content = found(record)
        return content is not None and content.startswith(wanted)

    return starts


def _header(name: str) -> Callable[[Record], bytes | None]:
    def content(record: Record) -> bytes | None:
        found = None
        for each, value in record.headers:
            if each == name:
                found = value
        return found

    return content
