"""Views: read-only topics with the partitions of another topic, of which only matching records are sent.

Each view is stored as one setting of a broker that cannot exist. Apache Kafka keeps such settings, with any names, and
they have no effect there, while it drops unknown settings of topics from its snapshots. A topic with the same name,
which only other software can have created, hides the view.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from kpybroker.config.resource_type import ResourceType
from kpybroker.config.view_keys import VIEW_OF, VIEW_WHERE
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.part import Metadata, Part
from kpybroker.wire.stored.metadata import ConfigRecord

STORED_IN = (ResourceType.BROKER, "-1000")
"""The resource that has the views as settings. Ids of brokers are not negative, and Apache Kafka needs a number."""
VIEWS_MAX = 1000
"""The most views in a cluster."""
_PREFIX = "kpybroker.view."


class TopicView(NamedTuple):
    """A view with its source topic and the text of its expression."""

    name: str
    source: str
    where: str

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of the view as clients see them."""
        return {VIEW_OF: self.source, VIEW_WHERE: self.where}

    def record(self) -> ConfigRecord:
        """The record that adds or changes the view."""
        return _record(self.name, f"{self.source} {self.where}")

    def removal(self) -> ConfigRecord:
        """The record that removes the view."""
        return _record(self.name, None)

    def refusal(self) -> KafkaError:
        """The refusal of everything but reading. Clients do not retry after this error."""
        return KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{self.name} is a view of {self.source}, which can only be read; use {self.source} instead.",
        )


def _record(view: str, value: str | None) -> ConfigRecord:
    kind, resource = STORED_IN
    return ConfigRecord(resource_type=kind, resource_name=resource, name=_PREFIX + view, value=value)


VIEWS: Part[Mapping[str, TopicView]] = Part("views", {}, {}, lambda _: ())
"""Views by name: an index that is updated by the records of settings."""


def follow_setting(metadata: Metadata, setting: str, text: str | None) -> None:
    """Add, change or remove a view after its setting has changed."""
    if not setting.startswith(_PREFIX):
        return
    name = setting.removeprefix(_PREFIX)
    if text is not None:
        source, _, where = text.partition(" ")
        metadata.changing(VIEWS)[name] = TopicView(name, source, where)
    elif name in VIEWS.of(metadata):
        del metadata.changing(VIEWS)[name]


@lru_cache(maxsize=VIEWS_MAX)
def view_id(source_id: bytes, name: str) -> bytes:
    """The topic id of a view: a UUID of version 8 that is derived from the id of its source, so that it is the same on
    all nodes, and another one after the source was recreated. Like Kafka's ids, its text does not begin with a dash."""
    raw = bytearray(blake2b(source_id + name.encode(), digest_size=16, person=b"kpybroker.view").digest())
    raw[0] &= 0x7F
    raw[6] = raw[6] & 0x0F | 0x80
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)
