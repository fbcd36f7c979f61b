"""Server-side assignors, which compute the target assignments of consumer groups (KIP-848).

`uniform` gives all members that subscribe to a topic about the same number of partitions, with as few moves as
possible. `range` gives each member one contiguous range of each topic, and the same range in all topics with the same
number of partitions and the same subscribers, so that these topics can be joined by key. Both are pure functions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

from kpybroker.topics import TopicIdPartition

GroupAssignment = dict[str, frozenset[TopicIdPartition]]
"""The target assignments of the members, by member id."""

PASSES = 8
"""The most passes that level the counts of members with different subscriptions."""


class MemberSubscription:
    """The subscription of one member, and its previous target assignment. `topics` are ids; topics without partitions
    are ignored."""

    __slots__ = ("instance_id", "target", "topics")

    def __init__(
        self,
        topics: Collection[bytes],
        target: frozenset[TopicIdPartition] = frozenset(),
        instance_id: str | None = None,
    ) -> None:
        self.topics = topics
        self.target = target
        self.instance_id = instance_id


Assignor = Callable[[Mapping[str, MemberSubscription], Mapping[bytes, int]], GroupAssignment]
"""Computes an assignment from the subscriptions by member id and the numbers of partitions by topic id."""


def uniform(wishes: Mapping[str, MemberSubscription], partitions: Mapping[bytes, int]) -> GroupAssignment:
    """Spread partitions evenly, with few moves."""
    members = sorted(wishes)
    if not members:
        return {}
    topics = wishes[members[0]].topics
    if all(wish.topics == topics for wish in wishes.values()):
        return _divide(members, wishes, {(each, index) for each in topics for index in range(partitions.get(each, 0))})
    held: list[set[TopicIdPartition]] = [set() for _ in members]
    taken: set[TopicIdPartition] = set()
    for at, member_id in enumerate(members):
        wanted = wishes[member_id].topics
        for place in wishes[member_id].target:
            topic, partition = place
            if topic in wanted and partition < partitions.get(topic, 0) and place not in taken:
                taken.add(place)
                held[at].add(place)
    classes = _classes([wishes[member_id].topics for member_id in members], partitions)
    for subscribers, shared in classes:
        _give_out(held, subscribers, shared, partitions, taken)
    for _ in range(PASSES):
        if not sum(_level(held, subscribers, frozenset(shared)) for subscribers, shared in classes):
            break
    return {member_id: frozenset(held[at]) for at, member_id in enumerate(members)}


def _classes(
    wanted: Sequence[Collection[bytes]], partitions: Mapping[bytes, int]
) -> list[tuple[tuple[int, ...], list[bytes]]]:
    """Topics grouped by their subscribers. Topics with the fewest subscribers come first, because they can be assigned
    to the fewest members."""
    subscribers: dict[bytes, list[int]] = {}
    for at, topics in enumerate(wanted):
        for topic in topics:
            if topic in partitions:
                subscribers.setdefault(topic, []).append(at)
    classes: dict[tuple[int, ...], list[bytes]] = {}
    for topic in sorted(subscribers):
        classes.setdefault(tuple(subscribers[topic]), []).append(topic)
    return sorted(classes.items(), key=lambda each: len(each[0]))


def _divide(
    members: Sequence[str], wishes: Mapping[str, MemberSubscription], free: set[TopicIdPartition]
) -> GroupAssignment:
    """Divide the partitions `free` among members with the same subscription. Each member keeps its partitions up to an
    even share, and receives partitions if it has fewer."""
    share, more = divmod(len(free), len(members))
    plan: GroupAssignment = {}
    for member_id in members:
        kept = wishes[member_id].target & free
        keeps = share + (more > 0 and len(kept) > share)
        more -= keeps > share
        if len(kept) > keeps:
            kept = frozenset(sorted(kept)[:keeps])
        free -= kept
        plan[member_id] = kept
    left = iter(sorted(free))
    for member_id in members:
        kept = plan[member_id]
        missing = share - len(kept)
        if missing >= 0 and more > 0:
            missing, more = missing + 1, more - 1
        if missing > 0:
            plan[member_id] = kept.union(islice(left, missing))
    return plan


def _give_out(
    held: list[set[TopicIdPartition]],
    subscribers: tuple[int, ...],
    topics: list[bytes],
    partitions: Mapping[bytes, int],
    taken: set[TopicIdPartition],
) -> None:
    """Assign each unassigned partition to the member with the fewest partitions."""
    least = [(len(held[at]), at) for at in subscribers]
    heapq.heapify(least)
    for topic in topics:
        for partition in range(partitions[topic]):
            place = (topic, partition)
            if place not in taken:
                count, at = least[0]
                held[at].add(place)
                heapq.heapreplace(least, (count + 1, at))


def _level(held: list[set[TopicIdPartition]], subscribers: tuple[int, ...], topics: frozenset[bytes]) -> int:
    """Move partitions of these topics from the member with the most to the member with the fewest, while this makes the
    counts more even. Returns the number of moves."""
    # the last partitions of the last member move first, so that the first ones stay
    spare = {at: sorted(place for place in held[at] if place[0] in topics) for at in subscribers}
    most = [(-len(held[at]), -at) for at in subscribers if spare[at]]
    least = [(len(held[at]), at) for at in subscribers]
    heapq.heapify(most)
    heapq.heapify(least)
    moves = 0
    while most:
        giver, taker = -most[0][1], least[0][1]
        if -most[0][0] != len(held[giver]) or not spare[giver]:
            heapq.heappop(most)
            if spare[giver]:
                heapq.heappush(most, (-len(held[giver]), -giver))
        elif least[0][0] != len(held[taker]):
            heapq.heapreplace(least, (len(held[taker]), taker))
        elif len(held[giver]) - len(held[taker]) <= 1:
            break
        else:
            place = spare[giver].pop()
            held[giver].discard(place)
            held[taker].add(place)
            moves += 1
    return moves


def ranges(wishes: Mapping[str, MemberSubscription], partitions: Mapping[bytes, int]) -> GroupAssignment:
    """Contiguous ranges, topic by topic. Static members come first, in the order of their instance ids."""
    members = sorted(wishes, key=lambda each: _range_order(each, wishes[each]))
    held: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    for topic in sorted(partitions):
        subscribers = [member_id for member_id in members if topic in wishes[member_id].topics]
        if not subscribers:
            continue
        share, more = divmod(partitions[topic], len(subscribers))
        start = 0
        for at, member_id in enumerate(subscribers):
            end = start + share + (at < more)
            held[member_id].update((topic, partition) for partition in range(start, end))
            start = end
    return {member_id: frozenset(places) for member_id, places in held.items()}


def _range_order(member_id: str, wish: MemberSubscription) -> tuple[bool, str]:
    return (wish.instance_id is None, wish.instance_id or member_id)


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": ranges}
"""Named as in `ground/settings.py`."""
