"""Tests the invariants of the server-side assignors: all partitions are assigned once and evenly, and few partitions
move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.groups.consumer.assignors import ASSIGNORS, GroupAssignment, MemberSubscription, ranges, uniform
from kpybroker.groups.ground.settings import ASSIGNOR_CLASSES

TOPICS = [bytes([number]) * 16 for number in range(4)]
some_partitions = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12), min_size=1)
some_members = st.lists(st.text("abcdefgh", min_size=1, max_size=3), unique=True, min_size=1, max_size=8)


def wishes_of(plan: GroupAssignment, topics: frozenset[bytes]) -> dict[str, MemberSubscription]:
    return {member_id: MemberSubscription(topics, target) for member_id, target in plan.items()}


def owners(plan: GroupAssignment) -> dict[tuple[bytes, int], str]:
    found = [(place, member_id) for member_id, places in plan.items() for place in places]
    assert len(found) == len(dict(found)), "a partition was given twice"
    return dict(found)


@pytest.mark.slow
@given(st.data(), st.sampled_from(sorted(ASSIGNORS)), some_partitions, some_members)
def test_every_subscribed_partition_is_assigned_once_to_a_subscriber(
    data: st.DataObject, name: str, partitions: dict[bytes, int], members: list[str]
) -> None:
    some_topics = st.frozensets(st.sampled_from(TOPICS))
    wishes = {member_id: MemberSubscription(data.draw(some_topics)) for member_id in members}
    for _ in range(3):
        plan = ASSIGNORS[name](wishes, partitions)
        assert set(plan) == set(wishes)
        given_out = owners(plan)
        wanted = {topic for wish in wishes.values() for topic in wish.topics} & partitions.keys()
        assert given_out.keys() == {(topic, p) for topic in wanted for p in range(partitions[topic])}
        assert all(topic in wishes[member_id].topics for (topic, _), member_id in given_out.items())
        wishes = {member_id: MemberSubscription(data.draw(some_topics), plan[member_id]) for member_id in members}


@given(some_partitions, some_members, st.text("abcdefgh", min_size=4, max_size=4))
def test_uniform_is_even_and_moves_no_more_than_necessary(
    partitions: dict[bytes, int], members: list[str], newcomer: str
) -> None:
    topics = frozenset(partitions)
    first = uniform({member_id: MemberSubscription(topics) for member_id in members}, partitions)
    assert_even(first)
    assert uniform(wishes_of(first, topics), partitions) == first, "asked again without a change, nothing moves"
    joined = uniform({**wishes_of(first, topics), newcomer: MemberSubscription(topics)}, partitions)
    assert_even(joined)
    assert all(joined[member_id] <= first[member_id] for member_id in members), "only the newcomer gets something"
    left = uniform({each: wish for each, wish in wishes_of(joined, topics).items() if each != members[0]}, partitions)
    assert_even(left)
    assert all(left[each] >= joined[each] for each in left), "no remaining member loses a partition"
    more = {topic: count + 1 for topic, count in partitions.items()}
    grown = uniform(wishes_of(first, topics), more)
    assert_even(grown)
    lost = sum(len(first[member_id] - grown[member_id]) for member_id in members)
    assert lost == 0, "new partitions go to the member with the fewest"


@given(some_partitions, some_partitions, some_members)
def test_uniform_assigns_all_partitions_after_topics_have_changed(
    before: dict[bytes, int], now: dict[bytes, int], members: list[str]
) -> None:
    topics = frozenset(TOPICS)
    first = uniform({member_id: MemberSubscription(topics) for member_id in members}, before)
    plan = uniform(wishes_of(first, topics), now)
    assert owners(plan).keys() == {(topic, index) for topic, count in now.items() for index in range(count)}
    assert_even(plan)


def assert_even(plan: GroupAssignment) -> None:
    counts = [len(places) for places in plan.values()]
    assert not counts or max(counts) - min(counts) <= 1


@given(st.data(), some_partitions, some_members)
def test_uniform_levels_between_members_with_different_subscriptions(
    data: st.DataObject, partitions: dict[bytes, int], members: list[str]
) -> None:
    wishes = {member_id: MemberSubscription(data.draw(st.frozensets(st.sampled_from(TOPICS)))) for member_id in members}
    plan = uniform(wishes, partitions)
    for place, owner in owners(plan).items():
        for other, wish in wishes.items():
            if place[0] in wish.topics:
                assert len(plan[owner]) - len(plan[other]) <= 1, "a member with fewer partitions could have got it"


@given(some_partitions, some_members)
def test_ranges_are_contiguous_and_the_same_in_topics_of_one_size(
    partitions: dict[bytes, int], members: list[str]
) -> None:
    topics = frozenset(partitions)
    plan = ranges({member_id: MemberSubscription(topics) for member_id in members}, partitions)
    by_size: dict[int, dict[str, list[int]]] = {}
    for topic, count in partitions.items():
        found = {member_id: sorted(p for t, p in places if t == topic) for member_id, places in plan.items()}
        for mine in found.values():
            assert mine == list(range(mine[0], mine[0] + len(mine))) if mine else True
        assert by_size.setdefault(count, found) == found


def test_static_members_come_first_in_ranges() -> None:
    topic = TOPICS[0]
    wishes = {"a": MemberSubscription([topic]), "z": MemberSubscription([topic], instance_id="one")}
    assert ranges(wishes, {topic: 3}) == {"z": {(topic, 0), (topic, 1)}, "a": {(topic, 2)}}


def test_unknown_topics_do_not_count() -> None:
    for assign in ASSIGNORS.values():
        assert assign({"a": MemberSubscription(TOPICS), "b": MemberSubscription([])}, {}) == {
            "a": frozenset(),
            "b": frozenset(),
        }
        assert assign({}, {TOPICS[0]: 3}) == {}


def test_every_assignor_has_a_setting_and_the_name_of_kafkas_class() -> None:
    assert ASSIGNORS.keys() == ASSIGNOR_CLASSES.keys()
