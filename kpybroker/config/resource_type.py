"""The types of resources with settings."""

from __future__ import annotations

from enum import IntEnum


class ResourceType(IntEnum):
    """The types, by Kafka's codes (ConfigResource)."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32
