"""Both sides of a session agree: after any change, the leader has the partitions that the follower wants to fetch."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.errors import KafkaError
from kpybroker.replication.follower import fetch_session
from kpybroker.replication.follower.fetch_session import FetchSession, PartitionFetch
from kpybroker.replication.follower.follower_log import FetchPosition
from kpybroker.replication.partition.sessions import INITIAL_EPOCH, FetchSessions, Session, SessionKey, Want
from kpybroker.topics import TopicIdPartition

pytestmark = pytest.mark.slow

TOPIC_ID = b"t" * 16
WANTED = st.dictionaries(
    st.integers(0, 5).map(lambda index: (TOPIC_ID, index)),
    st.integers(0, 3).map(lambda offset: PartitionFetch(FetchPosition(0, offset, 0), 0, 100)),
    min_size=1,
)


class Leader:
    """The leader's side of the session, used as in `serving.fetch.session.resolve`."""

    def __init__(self, limit: int) -> None:
        self.sessions = FetchSessions(Random(1), limit, lambda: 0)
        self.held: dict[SessionKey, int] = {}

    def fetch(self, follower: FetchSession, wanted: dict[TopicIdPartition, PartitionFetch]) -> None:
        changed, forgotten, _ = follower.news(wanted)
        wants: OrderedDict[SessionKey, Want] = OrderedDict(
            (key, Want(None, TOPIC_ID, key[1], asked.place.offset, asked.max_bytes, 0))
            for key, asked in changed.items()
        )
        session: Session | None
        if follower.epoch == INITIAL_EPOCH:
            session = self.sessions.open(wants, by_id=True)
        else:
            session = self.sessions.resume(follower.id, follower.epoch, by_id=True)
            session.update(wants, list(forgotten))
        follower.answered(0 if session is None else session.id)
        held = wants if session is None else session.wants
        self.held = {key: want.fetch_offset for key, want in held.items()}


@given(st.lists(WANTED, min_size=1, max_size=12), st.sampled_from((0, 1, 10)))
def test_the_leader_knows_all_partitions(fetches: list[dict[TopicIdPartition, PartitionFetch]], limit: int) -> None:
    leader, follower = Leader(limit), FetchSession()
    for wanted in fetches:
        leader.fetch(follower, wanted)
        assert leader.held == {key: asked.place.offset for key, asked in wanted.items()}


@given(st.lists(st.tuples(WANTED, st.booleans()), min_size=1, max_size=12))
def test_a_lost_session_is_opened_again(fetches: list[tuple[dict[TopicIdPartition, PartitionFetch], bool]]) -> None:
    leader, follower = Leader(10), FetchSession()
    for wanted, is_lost in fetches:
        if is_lost:
            leader = Leader(10)  # the broker has restarted
        if is_lost and follower.id:
            with pytest.raises(KafkaError):
                leader.fetch(follower, wanted)
            follower.end()
        leader.fetch(follower, wanted)
        assert leader.held == {key: asked.place.offset for key, asked in wanted.items()}


@given(st.lists(WANTED, min_size=2, max_size=12))
def test_naming_touched_partitions_says_the_same_as_naming_all(
    fetches: list[dict[TopicIdPartition, PartitionFetch]],
) -> None:
    whole, touched = FetchSession(), FetchSession()
    before: dict[TopicIdPartition, PartitionFetch] = {}
    for wanted in fetches:
        changed, forgotten, _ = whole.news(wanted)
        parts = {key: wanted.get(key) for key in {**before, **wanted} if before.get(key) != wanted.get(key)}
        also_changed, also_forgotten, _ = touched.news(parts, is_whole=False)
        assert (also_changed, sorted(also_forgotten)) == (changed, sorted(forgotten))
        before = wanted


def test_unchanged_partitions_are_not_repeated() -> None:
    leader, follower = Leader(10), FetchSession()
    wanted = {(TOPIC_ID, index): PartitionFetch(FetchPosition(0, 0, 0), 0, 100) for index in range(1000)}
    leader.fetch(follower, wanted)
    moved = {**wanted, (TOPIC_ID, 7): PartitionFetch(FetchPosition(0, 1, 0), 0, 100)}
    assert follower.news(moved) == ({(TOPIC_ID, 7): moved[TOPIC_ID, 7]}, [], [])


@given(st.lists(WANTED, min_size=1, max_size=12))
def test_several_fetches_name_all_partitions(
    fetches: list[dict[TopicIdPartition, PartitionFetch]],
) -> None:
    """The next Fetches contain the partitions for which the first Fetch had no room. Until then, the leader keeps their
    earlier values."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch_session, "NAMED_MAX", 2)
        leader, follower = Leader(10), FetchSession()
        for wanted in fetches:
            before = leader.held
            for _ in range(4):
                leader.fetch(follower, wanted)
                assert len(set(leader.held.items()) - set(before.items())) <= 2
                before = leader.held
            assert leader.held == {key: asked.place.offset for key, asked in wanted.items()}
