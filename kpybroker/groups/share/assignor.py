"""The assignor of share groups (KIP-932, "simple"), which distributes partitions over members.

Members with the same topics share their partitions. If there are more members than partitions, each partition is
assigned to about members / partitions members. Otherwise each member is assigned about partitions / members partitions.
So every partition has a member, and every member has a partition. Within these limits, a member keeps the partitions
that it has.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Mapping

from kpybroker.topics import TopicIdPartition


def simple(
    wanted: Mapping[str, Collection[bytes]],
    held: Mapping[str, frozenset[TopicIdPartition]],
    partitions: Mapping[bytes, Collection[int]],
) -> dict[str, frozenset[TopicIdPartition]]:
    """The target of each member, by member id. Deterministic.

    wanted: the topic ids of each member; held: its previous target; partitions: those that may be assigned, by topic
    id.
    """
    classes: defaultdict[tuple[str, ...], list[bytes]] = defaultdict(list)
    for topic in sorted(partitions):
        subscribers = tuple(sorted(member_id for member_id, topics in wanted.items() if topic in topics))
        if subscribers:
            classes[subscribers].append(topic)
    plan: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in wanted}
    for subscribers, topics in sorted(classes.items(), key=lambda each: (len(each[0]), each[0])):
        places = [(topic, index) for topic in topics for index in sorted(partitions[topic])]
        if places:
            _spread(plan, subscribers, places, held)
    return {member_id: frozenset(places) for member_id, places in plan.items()}


def _spread(
    plan: dict[str, set[TopicIdPartition]],
    members: tuple[str, ...],
    places: list[TopicIdPartition],
    held: Mapping[str, frozenset[TopicIdPartition]],
) -> None:
    """Distribute places over members with the same topics: members first keep places, then the other places are
    assigned."""
    assignments = max(len(places), len(members))
    share, more = divmod(assignments, len(members))  # each member gets `share` places; `more` members get one more
    depth, deeper = divmod(assignments, len(places))  # each place gets `depth` members; `deeper` places get one more
    holders: dict[TopicIdPartition, int] = dict.fromkeys(places, 0)
    counts = dict.fromkeys(members, 0)
    for member_id in members:
        limit = share + (more > 0)
        for place in sorted(held.get(member_id, ())):
            room = depth + (deeper > 0)
            if counts[member_id] < limit and holders.get(place, room) < room:
                holders[place] += 1
                counts[member_id] += 1
                plan[member_id].add(place)
                deeper -= holders[place] > depth
        more -= counts[member_id] > share
    waiting = [(count, member_id) for member_id, count in counts.items() if count < share + 1]
    heapq.heapify(waiting)
    for place in places:
        if holders[place] == 0:
            _give(plan, place, waiting)
            holders[place] += 1
    for count, member_id in sorted(waiting):
        if count == 0:
            place = min(places, key=lambda each: holders[each])
            holders[place] += 1
            plan[member_id].add(place)


def _give(plan: dict[str, set[TopicIdPartition]], place: TopicIdPartition, waiting: list[tuple[int, str]]) -> None:
    """Assign a place to the member with the fewest places."""
    count, member_id = waiting[0]
    plan[member_id].add(place)
    heapq.heapreplace(waiting, (count + 1, member_id))
