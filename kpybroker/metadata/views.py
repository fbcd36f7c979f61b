"""Views: read-only topics with the partitions of another topic, of which only matching records are sent.

Each view is stored as one of the settings in `own_settings.py`. A topic with the same name, which only other software
can have created, hides the view.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kpybroker.config.view_keys import VIEW_OF, VIEW_WHERE
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.own_settings import own_record
from kpybroker.metadata.part import Metadata, Part
from kpybroker.wire.stored.metadata import ConfigRecord

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
        return own_record(_PREFIX + self.name, f"{self.source} {self.where}")

    def removal(self) -> ConfigRecord:
        """The record that removes the view."""
        return own_record(_PREFIX + self.name, None)

    def refusal(self) -> KafkaError:
        """The refusal of everything but reading. Clients do not retry after this error."""
        return KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{self.name} is a view of {self.source}, which can only be read; use {self.source} instead.",
        )


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
