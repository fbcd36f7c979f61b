"""The effective settings of one group: its own values, if they can be applied, within the broker's limits."""

from __future__ import annotations

from kpybroker.config.dynamic import why_unusable
from kpybroker.config.resource_type import ResourceType
from kpybroker.metadata.image import Image


def text_of(image: Image, group_id: str, name: str, default: str) -> str:
    """A group's own setting, or the default if the group has none."""
    own = image.config(ResourceType.GROUP, group_id).get(name)
    return default if own is None or why_unusable(ResourceType.GROUP, name, own) is not None else own


def number_of(image: Image, group_id: str, name: str, default: int, low: int, high: int) -> int:
    """A group's own setting, moved into the broker's limits, or the broker's default if the group has none."""
    own = text_of(image, group_id, name, "")
    return min(max(int(own), low), high) if own else default
