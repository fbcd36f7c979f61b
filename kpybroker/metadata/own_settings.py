"""The resource with metadata that only kpybroker has.

Apache Kafka keeps settings of a broker that cannot exist, with any names, and they have no effect there, while it drops
unknown settings of topics from its snapshots.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from kpybroker.config.resource_type import ResourceType
from kpybroker.wire.stored.metadata import ConfigRecord

STORED_IN = (ResourceType.BROKER, "-1000")
"""Ids of brokers are not negative, and Apache Kafka needs a number."""


def own_record(name: str, value: str | None) -> ConfigRecord:
    """The record that sets a setting of this resource, or removes it."""
    kind, resource = STORED_IN
    return ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)


@lru_cache(maxsize=2000)
def derived_id(source_id: bytes, name: str) -> bytes:
    """The topic id of something that is shown as a topic: a UUID of version 8 that is derived from the id of its source
    and its name, so that it is the same on all nodes, and another one after the source was recreated. Like Kafka's ids,
    its text does not begin with a dash."""
    raw = bytearray(blake2b(source_id + name.encode(), digest_size=16, person=b"kpybroker.view").digest())
    raw[0] &= 0x7F
    raw[6] = raw[6] & 0x0F | 0x80
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)
