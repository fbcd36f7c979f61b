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
from typing import NamedTuple

from kpybroker.errors import ConfigError
from kpybroker.similar_names import meant
from kpybroker.wire.records.batch import Record, put_varint

TEXT_MAX = 4000
"""The most characters of an expression."""
DEPTH_MAX = 50
"""How deep parentheses and `not` may be nested."""
NEEDLES_MAX = 32
"""The most byte sequences of a filter. With more, it is as fast to parse all records."""
Predicate = Callable[[Record], bool]
Needles = tuple[bytes, ...] | None
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
    needles: Needles
    """Byte sequences of which each selected record contains at least one in its encoding, so that other records need
    not be parsed; None if there are none."""

    def __str__(self) -> str:
        return self.text


def parse_filter(text: str) -> RecordFilter:
    """Read an expression. Raises ConfigError with the place and the reason."""
    if len(text) > TEXT_MAX:
        raise ConfigError(f"an expression of {len(text)} characters; at most {TEXT_MAX}")
    parser = _Parser(text)
    found = parser.either(0)
    parser.end()
    return RecordFilter(text, found.matches, found.needles)


class _Term(NamedTuple):
    """A part of an expression: see `RecordFilter`."""

    matches: Predicate
    needles: Needles = None


class _Field(NamedTuple):
    """What is compared: how it is read from a record, and the bytes before its length in the encoding of a record."""

    read: Callable[[Record], bytes | None]
    before: bytes = b""


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    """A parser by recursive descent. The methods return terms, and raise ConfigError."""

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

    def either(self, depth: int) -> _Term:
        terms = [self._both(depth)]
        while self._takes("or"):
            terms.append(self._both(depth))
        if len(terms) == 1:
            return terms[0]
        predicates = [term.matches for term in terms]
        return _Term(lambda record: any(matches(record) for matches in predicates), _any_of(terms))

    def _both(self, depth: int) -> _Term:
        terms = [self._negated(depth)]
        while self._takes("and"):
            terms.append(self._negated(depth))
        if len(terms) == 1:
            return terms[0]
        predicates = [term.matches for term in terms]
        return _Term(lambda record: all(matches(record) for matches in predicates), _rarest_of(terms))

    def _negated(self, depth: int) -> _Term:
        if depth > DEPTH_MAX:
            raise self._wrong(f"nested more than {DEPTH_MAX} deep")
        if self._takes("not"):
            matches = self._negated(depth + 1).matches
            return _Term(lambda record: not matches(record))
        if self._takes("("):
            term = self.either(depth + 1)
            self._needs(")")
            return term
        return self._comparison()

    def _comparison(self) -> _Term:
        if self._takes("tombstone"):
            return _Term(lambda record: record.value is None)
        if self._takes("timestamp"):
            return self._time_comparison()
        if self._takes("exists"):
            read, before = self._field()
            return _Term(lambda record: read(record) is not None, (before,) if before else None)
        field = self._field()
        read = field.read
        if self._takes("=="):
            wanted = self._content()
            return _Term(lambda record: read(record) == wanted, (_encoded(field, wanted),))
        if self._takes("!="):
            wanted = self._content()
            return _Term(lambda record: read(record) != wanted)
        if self._takes("prefix"):
            return _starts_with(field, self._content())
        if self._takes("in"):
            self._needs("(")
            several = {self._content()}
            while self._takes(","):
                several.add(self._content())
            self._needs(")")
            return _Term(
                lambda record: read(record) in several,
                tuple(_encoded(field, each) for each in sorted(several)) if len(several) <= NEEDLES_MAX else None,
            )
        raise self._wrong(f"expected one of {', '.join(OPERATORS)}")

    def _time_comparison(self) -> _Term:
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
        return _Term(lambda record: compare(record.timestamp, wanted))

    def _time(self, token: _Token) -> int:
        from datetime import UTC, datetime  # a broker without such views starts without it

        try:
            time = datetime.fromisoformat(_unquoted(token.text))
        except ValueError:
            raise self._wrong("not a time; write it like '2026-01-31T12:00:00Z'") from None
        return round((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)

    def _field(self) -> _Field:
        token = self._now
        if self._takes("key"):
            return _Field(lambda record: record.key)
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


def _any_of(terms: list[_Term]) -> Needles:
    """The needles of a term that is true if any of these is."""
    found = [needle for term in terms for needle in term.needles or ()]
    return tuple(found) if len(found) <= NEEDLES_MAX and all(term.needles for term in terms) else None


def _rarest_of(terms: list[_Term]) -> Needles:
    """The needles of a term that is true if all of these are: those of one of them, with the longest needles."""
    return max((term.needles for term in terms if term.needles), key=lambda found: min(map(len, found)), default=None)


def _encoded(field: _Field, content: bytes) -> bytes:
    """A field with this content, as it is encoded in a record."""
    out = bytearray(field.before)
    put_varint(out, len(content))
    return bytes(out + content)


def _starts_with(field: _Field, wanted: bytes) -> _Term:
    read = field.read

    def starts(record: Record) -> bool:
        content = read(record)
        return content is not None and content.startswith(wanted)

    needle = field.before or wanted
    return _Term(starts, (needle,) if needle else None)


def _header(name: str) -> _Field:
    def content(record: Record) -> bytes | None:
        found = None
        for each, value in record.headers:
            if each == name:
                found = value
        return found

    encoded = bytearray()
    put_varint(encoded, len(name.encode()))
    return _Field(content, bytes(encoded) + name.encode())
