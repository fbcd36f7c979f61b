"""The key of a share partition: a partition of a topic, as consumed by one share group."""

from __future__ import annotations

from binascii import Error
from typing import NamedTuple

from kpybroker.storage.dirs.formatting import decode_id, encode_id


class ShareKey(NamedTuple):
    """A share group, a topic id and a partition index."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def text(self) -> str:
        """The key in FindCoordinator, and for the hash: group:topicId:partition."""
        return f"{self.group_id}:{encode_id(self.topic_id)}:{self.partition}"


def parse_key(text: str) -> ShareKey:
    """The share partition of a FindCoordinator key; a group id may contain colons. Raises ValueError."""
    group_id, topic_id, partition = text.rsplit(":", 2)
    if not group_id:
        raise ValueError("a share partition needs a group id")
    try:
        return ShareKey(group_id, decode_id(topic_id), int(partition))
    except Error as wrong:
        raise ValueError(f"{topic_id!r} is not a topic id") from wrong
