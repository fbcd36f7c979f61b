"""Keys and values of coordinators' logs: an int16 in front says which kind of key, or which version of a value.

Source: `__consumer_offsets` and `__transaction_state` as Apache Kafka writes them (CoordinatorRecordSerde).
"""

from struct import Struct, error
from typing import Any, TypeVar

from kpybroker.errors import Damage, MalformedFrame
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.codec.message import key_of, last_version

T = TypeVar("T")
_PREFIX = Struct(">h")


def build_stored(message: Any, version: int = 0) -> bytes:
    """A key (which exists in version 0 only) or a value, with its prefix."""
    key = key_of(type(message))
    return _PREFIX.pack(version if key is None else key) + build(message, version)


def prefix_of(data: bytes | memoryview) -> int:
    """The kind of a key or the version of a value. Raises Damage: too short to have one."""
    try:
        prefix: int = _PREFIX.unpack_from(data)[0]
    except error:
        raise Damage(f"{len(data)} bytes instead of a stored key or value") from None
    return prefix


def parse_stored(cls: type[T], data: bytes | memoryview) -> T:
    """A key or value of this class. Raises Damage: another kind, an unknown version, or bytes that cannot be read."""
    prefix, key = prefix_of(data), key_of(cls)
    known = 0 <= prefix <= last_version(cls) if key is None else prefix == key
    if not known:
        raise Damage(f"{prefix} in front of a {cls.__name__}")
    try:
        return parse(cls, prefix if key is None else 0, data, _PREFIX.size)
    except MalformedFrame as reason:
        raise Damage(f"a {cls.__name__} that cannot be read: {reason}") from None
