"""Decides on the creation, the change and the deletion of views (`metadata/views.py`).

Refusals have error codes that clients do not retry, and say what to do instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kpybroker.config.view_keys import VIEW_KEYS, VIEW_OF, VIEW_WHERE
from kpybroker.controller.commands import NewTopic, TopicResult
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ConfigError, ErrorCode, KafkaError
from kpybroker.metadata.own_settings import derived_id
from kpybroker.metadata.views import VIEWS_MAX, TopicView
from kpybroker.topics import is_internal
from kpybroker.wire.records.record_filter import parse_filter


def is_view(topic: NewTopic) -> bool:
    """Whether a topic in a CreateTopics is a view."""
    return any(name in VIEW_KEYS for name, _ in topic.configs)


def create_view(state: ControllerState, topic: NewTopic, views: int) -> tuple[Any, TopicResult]:
    """The record of a new view, whose name has been checked. `views` is the number of views that the same request has
    created. Raises KafkaError."""
    settings = dict(topic.configs)
    others = [name for name in settings if name not in VIEW_KEYS]
    if others:
        raise _wrong(f"a view has the settings of its source, so {others[0]} cannot be set for it")
    source = settings.get(VIEW_OF)
    if source is None:
        raise _wrong(f"{VIEW_WHERE} needs {VIEW_OF}, the topic that the view shows")
    where = checked_filter(settings.get(VIEW_WHERE))
    if is_internal(topic.name):
        raise _wrong(f"{topic.name} is the name of an internal topic; give the view another name")
    known = _source(state, topic.name, source)
    partitions, factor = len(known.partitions), len(known.partitions[0].replicas)
    if (
        topic.assignments
        or topic.num_partitions not in (-1, partitions)
        or topic.replication_factor not in (-1, factor)
    ):
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"A view has the partitions and replicas of its source, so leave their numbers out (-1): {source} has "
            f"{partitions} partitions with {factor} replicas.",
        )
    if len(state.views) + views >= VIEWS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"The cluster has {VIEWS_MAX} views, which is the limit; delete some of them."
        )
    view = TopicView(topic.name, source, where)
    result = TopicResult(
        view.name,
        derived_id(known.topic_id, view.name),
        num_partitions=partitions,
        replication_factor=factor,
        configs=view.settings,
    )
    return view.record(), result


def _source(state: ControllerState, view: str, source: str) -> Any:
    if source == view:
        raise _wrong(f"{view} cannot be a view of itself; give the view another name")
    if is_internal(source):
        raise _wrong(f"{source} is an internal topic, which cannot have views")
    of = state.views.get(source)
    if of is not None and source not in state.topics:
        raise _wrong(
            f"{source} is itself a view; create a view of {of.source} with an expression such as ({of.where}) and ..."
        )
    retired = state.retired(source)
    if retired is not None:
        raise _wrong(f"{source} has the retired partitions of {retired.topic}; a view of that one shows them, too")
    known = state.topics.get(source)
    if known is None:
        raise _wrong(f"there is no topic {source}; create it first")
    return known


def checked_filter(text: str | None) -> str:
    """The text of an expression. Raises INVALID_CONFIG if there is none, or if it cannot be used."""
    if not text:
        raise _wrong(f'a view needs {VIEW_WHERE}, an expression such as header.region == "eu"')
    try:
        return parse_filter(text).text
    except ConfigError as error:
        raise _wrong(f"{VIEW_WHERE}: {error}") from None


def changed(view: TopicView, wanted: Mapping[str, str]) -> TopicView:
    """The view with other settings. Raises INVALID_CONFIG."""
    others = [name for name in wanted if name not in VIEW_KEYS]
    if others:
        raise _wrong(f"{view.name} is a view, so {others[0]} cannot be set for it; set it for {view.source}")
    if wanted.get(VIEW_OF) != view.source:
        raise _wrong(f"{VIEW_OF} cannot be changed; delete {view.name}, and create it again")
    return view._replace(where=checked_filter(wanted.get(VIEW_WHERE)))


def views_of(state: ControllerState, source: str) -> Iterator[TopicView]:
    """The views of a topic."""
    return (view for view in state.views.values() if view.source == source)


def shown_views(state: ControllerState) -> Iterator[tuple[str, bytes]]:
    """The name and the topic id of each view, except those whose source does not exist and those that a topic hides."""
    for name, view in state.views.items():
        source = state.topics.get(view.source)
        if source is not None and name not in state.topics:
            yield name, derived_id(source.topic_id, name)


def _wrong(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, reason)
