"""The topics of a consumer's subscription: the one thing a broker reads of what members tell their leader.

Source: ConsumerProtocolSubscription, whose first fields are the same in every version: an int16 version, then an array
of strings.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

_HEAD = Struct(">hi")
_LENGTH = Struct(">h")


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics named in `subscriptions`; None if one of them is not a consumer's subscription."""
    topics: set[str] = set()
    for subscription in subscriptions:
        named = _topics(subscription)
        if named is None:
            return None
        topics.update(named)
    return frozenset(topics)


def _topics(subscription: bytes) -> list[str] | None:
    size = len(subscription)
    if size < _HEAD.size:
        return None
    version, count = _HEAD.unpack_from(subscription)
    if version < 0 or not 0 <= count <= (size - _HEAD.size) // _LENGTH.size:
        return None
    topics = []
    position = _HEAD.size
    for _ in range(count):
        if position + _LENGTH.size > size:
            return None
        (length,) = _LENGTH.unpack_from(subscription, position)
        position += _LENGTH.size
        if length < 0 or position + length > size:
            return None
        try:
            topics.append(subscription[position : position + length].decode())
        except UnicodeDecodeError:
            return None
        position += length
    return topics
