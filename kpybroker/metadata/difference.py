"""Computes differences between two Images: all of them when the records between the Images are missing, because a
snapshot has replaced them, and the views that were removed."""

from __future__ import annotations

from collections.abc import Iterator

from kpybroker.metadata.image import Changes, Image, TopicImage


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


def removed_views(before: Image, after: Image) -> Iterator[TopicImage]:
    """The views, as topics, that were removed between two Images, or that now show another topic."""
    if before.views is after.views and not after.changes.removed:
        return
    for name, view in before.shown_views.items():
        now = after.shown_views.get(name)
        if now is None or now.id != view.id:
            yield view
