"""Computes the lag and the number of members of many groups, with a few requests to each coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kpybroker.cli.group_facts import NAMES_NOT_IDS
from kpybroker.client.client import LATEST, Client, check
from kpybroker.errors import KafkaError, MalformedFrame
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import consumer_group_describe, describe_groups, list_groups, offset_fetch

GROUPS_PER_REQUEST = 100
DESCRIBED_BY = {"consumer": "ConsumerGroupDescribe"}
"""The API that describes groups of a type; DescribeGroups describes groups of all other types."""
REQUESTS: Mapping[str, Callable[[list[str]], Any]] = {
    "DescribeGroups": lambda names: describe_groups.Request(groups=names),
    "ConsumerGroupDescribe": lambda names: consumer_group_describe.Request(group_ids=names),
}
"""A function for each of these APIs that makes a request for groups by name."""


@dataclass(slots=True)
class Overview:
    """A group in `groups list`. `members` and `lag` are None if unknown."""

    group: str
    state: str
    kind: str
    protocol: str
    members: int | None = None
    lag: int | None = None

    @property
    def facts(self) -> dict[str, str | int | None]:
        """The fields of the JSON output."""
        return {
            "group": self.group,
            "state": self.state,
            "type": self.kind,
            "protocol": self.protocol,
            "members": self.members,
            "lag": self.lag,
        }


async def overviews(client: Client) -> list[Overview]:
    """All groups by name. Raises KafkaError, OSError."""
    await client.metadata([])
    found: list[Overview] = []
    offsets: dict[str, dict[TopicPartition, int]] = {}

    async def attempt(node: int) -> list[Overview]:
        response = await client.ask("ListGroups", list_groups.Request(), node=node)
        check(response.error_code)
        return [Overview(row.group_id, row.group_state, row.group_type, row.protocol_type) for row in response.groups]

    for node in sorted(client.brokers):
        here = await client.patiently(partial(attempt, node))
        found += here
        for some in _in_parts(here):
            await _count_members(client, node, some)
            offsets |= await _committed(client, node, [each.group for each in some])
    ends = await _ends(client, {place for places in offsets.values() for place in places})
    for each in found:
        places = offsets.get(each.group)
        if places is not None:
            each.lag = sum(max(0, ends[place] - at) for place, at in places.items() if place in ends)
    return sorted(found, key=lambda each: each.group)


def _in_parts(groups: Sequence[Overview]) -> Iterator[Sequence[Overview]]:
    for at in range(0, len(groups), GROUPS_PER_REQUEST):
        yield groups[at : at + GROUPS_PER_REQUEST]


async def _count_members(client: Client, node: int, groups: Sequence[Overview]) -> None:
    """Set `members`. It stays None for a group that was created, deleted or moved since it was listed."""
    by_name = {each.group: each for each in groups}
    by_api: dict[str, list[str]] = {}
    for each in groups:
        by_api.setdefault(DESCRIBED_BY.get(each.kind.lower(), "DescribeGroups"), []).append(each.group)
    for api, names in by_api.items():
        try:
            response = await client.ask(api, REQUESTS[api](names), node=node)
        except MalformedFrame:  # the broker does not serve this API
            continue
        for row in response.groups:
            if not row.error_code:
                by_name[row.group_id].members = len(row.members)


async def _committed(client: Client, node: int, names: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    request = offset_fetch.Request(
        groups=[offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    )
    response = await client.ask("OffsetFetch", request, node=node, at_most=NAMES_NOT_IDS)
    return {
        group.group_id: {
            (topic.name, row.partition_index): row.committed_offset
            for topic in group.topics
            for row in topic.partitions
            if not row.error_code and row.committed_offset >= 0
        }
        for group in response.groups
        if not group.error_code
    }


async def _ends(client: Client, places: set[TopicPartition]) -> dict[TopicPartition, int]:
    """The end offsets of the partitions that have a leader."""
    if not places:
        return {}
    known = await client.metadata(sorted({topic for topic, _ in places}))
    alive = {
        (name, row.partition_index)
        for name, topic in known.items()
        for row in topic.partitions
        if not topic.error_code and not row.error_code
    }
    try:
        return await client.list_offsets({place: LATEST for place in places if place in alive})
    except KafkaError:  # a leader has just changed; the next call finds the new one
        return {}
