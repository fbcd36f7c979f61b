"""Computes the difference between two Images when the records between them are missing, because a snapshot has replaced
them."""

from __future__ import annotations

from kpybroker.metadata.image import Changes, Image


def with_changes(before: Image, after: Image) -> Image:
    """Returns `after`, with its difference from `before` in `changes`. Compares every topic and every setting."""
    removed = tuple(
        topic for name, topic in before.topics.items() if (now := after.topics.get(name)) is None or now.id != topic.id
    )
    topics = tuple(name for name, topic in after.topics.items() if before.topics.get(name) != topic)
    configs = tuple(
        key
        for key in dict.fromkeys([*before.configs, *after.configs])
        if before.configs.get(key) != after.configs.get(key)
    )
    return after.with_changes(Changes(removed, topics, configs))
