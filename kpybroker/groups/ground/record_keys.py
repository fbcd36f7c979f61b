"""Keys and versions of records in `__consumer_offsets`.

A key begins with the kind of record (int16), and a value with its version (int16). The versions are those that Kafka
4.3 writes.
"""

from __future__ import annotations

from struct import Struct

from kpybroker.errors import MalformedFrame

LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2

KEY_VERSION = 0
HIGHEST_VERSION = 4
"""The highest version of either kind of value that Kafka 4.3 reads."""
_first_int16 = Struct(">h").unpack_from


def kind_of(key: bytes) -> int:
    """The kind of a record; -1 if the key is too short."""
    return _first_int16(key)[0] if len(key) >= 2 else -1


def group_of(key: bytes) -> str:
    """The group id in a key: its first field in all kinds of KIP-848, KIP-932 and KIP-1071. Raises MalformedFrame."""
    size = int.from_bytes(key[2:4], "big", signed=True)
    if not 0 <= size <= len(key) - 4:
        raise MalformedFrame("a key without a group id")
    try:
        return bytes(key[4 : 4 + size]).decode()
    except UnicodeDecodeError:
        raise MalformedFrame("a group id that is not UTF-8") from None


def versioned(version: int, body: bytes) -> bytes:
    """The bytes of a key after its kind, or of a value after its version."""
    return version.to_bytes(2, "big") + body


def version_of(value: bytes, highest: int) -> int:
    """The version of a value. Raises MalformedFrame if it is higher than `highest`."""
    version = kind_of(value)
    if not 0 <= version <= highest:
        raise MalformedFrame(f"its value has version {version}, but only versions up to {highest} are known")
    return version
