"""Encodes and parses keys and values in coordinators' logs. An int16 before a key is its type; before a value, its
version.

Source: the format in which Apache Kafka writes `__consumer_offsets` and `__transaction_state` (CoordinatorRecordSerde).
"""

from struct import Struct, error
from typing import Any, TypeVar

from kpybroker.errors import Damage, MalformedFrame
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.codec.message import key_of, last_version

T = TypeVar("T")
_PREFIX = Struct(">h")


def build_stored(message: Any, version: int = 0) -> bytes:
    """Encode a key, which always has version 0, or a value, with its prefix."""
    key = key_of(type(message))
    return _PREFIX.pack(version if key is None else key) + build(message, version)


def prefix_of(data: bytes | memoryview) -> int:
    """The type of a key or the version of a value. Raises Damage if `data` is too short."""
    try:
        prefix: int = _PREFIX.unpack_from(data)[0]
    except error:
        raise Damage(f"{len(data)} bytes are too few for a stored key or value") from None
    return prefix


def parse_stored(cls: type[T], data: bytes | memoryview) -> T:
    """Parse a key or value of this class. Raises Damage if the type is different, the version is unknown, or it cannot
    be read."""
    prefix, key = prefix_of(data), key_of(cls)
    known = 0 <= prefix <= last_version(cls) if key is None else prefix == key
    if not known:
        raise Damage(f"the prefix of a {cls.__name__} is {prefix}")
    try:
        return parse(cls, prefix if key is None else 0, data, _PREFIX.size)
    except MalformedFrame as reason:
        raise Damage(f"a {cls.__name__} that cannot be read: {reason}") from None
