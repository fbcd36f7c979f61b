"""Fetch sessions: their epochs, their limits, and the order in which partitions are served."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import nullcontext
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.partition.sessions import EPOCH_MAX, EVICTION_MS, FetchSessions, Session, SessionKey, Want

ID = bytes(range(16))


def wants(*indices: int, offset: int = 0) -> OrderedDict[SessionKey, Want]:
    return OrderedDict((("t", index), Want("t", ID, index, offset, 1000, -1)) for index in indices)


def opened(sessions: FetchSessions) -> Session:
    session = sessions.open(wants(0), by_id=False)
    assert session is not None
    return session


def code_of(
    sessions: FetchSessions, session_id: int, epoch: int, *, by_id: bool = False, is_replica: bool = False
) -> int:
    try:
        sessions.resume(session_id, epoch, by_id=by_id, is_replica=is_replica)
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.NONE


def test_an_epoch_is_valid_once() -> None:
    sessions = FetchSessions(Random(1), 10, lambda: 0)
    one = opened(sessions)
    assert [code_of(sessions, one.id, epoch) for epoch in (0, 2, 1, 1, 2)] == [
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.NONE,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.NONE,
    ]
    assert code_of(sessions, one.id, 3, by_id=True) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert code_of(sessions, one.id, 3) == ErrorCode.NONE


def test_epochs_wrap_past_the_special_ones() -> None:
    sessions = FetchSessions(Random(1), 10, lambda: 0)
    one = opened(sessions)
    one.epoch = EPOCH_MAX
    assert code_of(sessions, one.id, EPOCH_MAX) == ErrorCode.NONE
    assert code_of(sessions, one.id, 1) == ErrorCode.NONE


def test_a_closed_session_is_unknown() -> None:
    sessions = FetchSessions(Random(1), 10, lambda: 0)
    one = opened(sessions)
    sessions.close(one.id)
    sessions.close(one.id)
    assert code_of(sessions, one.id, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("limit", [0, -1])
def test_without_room_there_are_no_sessions(limit: int) -> None:
    assert FetchSessions(Random(1), limit, lambda: 0).open(wants(0), by_id=False) is None


class Model:
    """The eviction rules of KIP-227, with a plain list."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.now_ms = 0
        self.every: list[Known] = []
        self.alive: list[Known] = []

    def given_up(self, is_replica: bool, size: int) -> Known | None:
        """The session to evict for a new session of this rank, if there are too many sessions."""
        unused = min(self.alive, key=lambda one: one.used)
        if self.now_ms - unused.used_ms > EVICTION_MS:
            return unused
        rank = (is_replica, size, 0)
        lower = [
            one
            for one in self.alive
            if one.rank < rank and (self.now_ms - one.begun_ms > EVICTION_MS or (is_replica and not one.session.news))
        ]
        return min(lower, key=lambda one: one.rank, default=None)


class Known:
    def __init__(self, session: Session, now_ms: int, uses: int) -> None:
        self.session = session
        self.begun_ms = self.used_ms = now_ms
        self.used = uses
        self.rank = (session.news is not None, len(session.wants), session.id)


STEPS = st.one_of(
    st.tuples(st.just("open"), st.booleans(), st.integers(1, 3)),
    st.tuples(st.just("use"), st.integers(0, 7), st.integers(1, 4)),
    st.tuples(st.just("close"), st.integers(0, 7), st.just(0)),
    st.tuples(st.just("wait"), st.just(0), st.sampled_from([1, EVICTION_MS // 2, EVICTION_MS, EVICTION_MS + 1])),
)


@pytest.mark.slow
@settings(max_examples=300)
@example(
    limit=2,
    steps=[("open", 0, 2), ("wait", 0, EVICTION_MS + 1), ("open", 0, 1), ("use", 0, 1), ("open", 1, 1), ("use", 0, 1)],
)
@given(limit=st.integers(1, 3), steps=st.lists(STEPS, max_size=30))
def test_a_new_session_evicts_only_as_kip_227_allows(limit: int, steps: list[tuple[str, int, int]]) -> None:
    model = Model(limit)
    sessions = FetchSessions(Random(1), limit, lambda: model.now_ms)
    for number, (what, which, much) in enumerate(steps):
        known = model.every[which] if what in ("use", "close") and which < len(model.every) else None
        if what == "wait":
            model.now_ms += much
        elif what == "open":
            gone = model.given_up(bool(which), much) if len(model.alive) >= limit else None
            session = sessions.open(wants(*range(much)), by_id=False, is_replica=bool(which))
            assert (session is None) is (len(model.alive) >= limit and gone is None)
            if gone is not None:
                model.alive.remove(gone)
            if session is not None:
                model.every.append(Known(session, model.now_ms, number))
                model.alive.append(model.every[-1])
        elif known is not None and what == "close":
            sessions.close(known.session.id)
            model.alive = [one for one in model.alive if one is not known]
        elif known is not None:
            session = known.session
            told = code_of(sessions, session.id, session.epoch, is_replica=known.rank[0])
            assert told == (ErrorCode.NONE if known in model.alive else ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            known.used_ms, known.used, known.rank = (
                model.now_ms,
                number,
                (*known.rank[:1], len(session.wants), session.id),
            )
            session.wants = wants(*range(much))
        assert len(sessions) == len(model.alive) <= limit


def held(sessions: FetchSessions) -> int:
    """The number of partitions in consumers' sessions, counted one by one."""
    return sum(len(one.wants) for one in sessions if one.news is None)


@pytest.mark.slow
@settings(max_examples=300)
@given(limit=st.integers(0, 6), steps=st.lists(STEPS, max_size=30))
def test_the_partitions_of_all_consumers_are_bounded(limit: int, steps: list[tuple[str, int, int]]) -> None:
    now_ms = 0
    sessions = FetchSessions(Random(1), 10, lambda: now_ms, limit)
    every: list[Session] = []
    for what, which, much in steps:
        one = every[which] if what in ("use", "close") and which < len(every) else None
        if what == "wait":
            now_ms += much
        elif what == "open":
            session = sessions.open(wants(*range(much)), by_id=False, is_replica=bool(which))
            if session is not None:
                every.append(session)
            else:
                assert not which, "replicas' sessions are not limited"
        elif one is not None and what == "close":
            sessions.close(one.id)
        elif one is not None:
            is_replica = one.news is not None
            if code_of(sessions, one.id, one.epoch, is_replica=is_replica) == ErrorCode.NONE:
                grown = len({*one.wants, *wants(*range(10, 10 + much))} - {("t", 11)})
                fits = held(sessions) + grown - len(one.wants) <= limit
                with nullcontext() if is_replica or fits else pytest.raises(KafkaError, match="SESSION_ID_NOT_FOUND"):
                    sessions.update(one, wants(*range(10, 10 + much)), [("t", 11)])
        assert held(sessions) <= limit
        assert sessions.partitions == held(sessions)


def test_a_session_above_the_limit_evicts_nobody() -> None:
    now_ms = 0
    sessions = FetchSessions(Random(1), 10, lambda: now_ms, 3)
    kept = sessions.open(wants(0, 1), by_id=False)
    now_ms = 2 * EVICTION_MS
    assert sessions.open(wants(0, 1, 2, 3), by_id=False) is None
    assert kept is not None
    assert code_of(sessions, kept.id, 1) == ErrorCode.NONE


@pytest.mark.parametrize("is_replica", [False, True])
def test_a_session_is_not_found_by_the_other_kind(is_replica: bool) -> None:
    sessions = FetchSessions(Random(1), 10, lambda: 0)
    one = sessions.open(wants(0), by_id=False, is_replica=is_replica)
    assert one is not None
    told = [code_of(sessions, one.id, 1, is_replica=kind) for kind in (not is_replica, is_replica)]
    assert told == [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.NONE]


def test_updates_change_positions_and_keep_the_last_response() -> None:
    session = Session(1, by_id=False, wants=wants(0, 1, 2))
    session.wants["t", 1].told_high_watermark = 8
    session.update(wants(1, 3, offset=7), [("t", 0), ("t", 9)])
    assert [(want.index, want.fetch_offset) for want in session.wants.values()] == [(1, 7), (2, 0), (3, 7)]
    assert session.wants["t", 1].told_high_watermark == 8


@given(served=st.lists(st.integers(0, 3), max_size=20))
def test_the_partition_served_longest_ago_comes_first(served: list[int]) -> None:
    session = Session(1, by_id=False, wants=wants(0, 1, 2, 3))
    for index in served:
        session.had_its_turn(("t", index))
    last = {index: at for at, index in enumerate(served)}
    assert [want.index for want in session.wants.values()] == sorted(range(4), key=lambda i: (last.get(i, -1), i))


def test_a_name_that_no_topic_can_have_is_not_stored() -> None:
    """A session that would have to store such a name is closed. Otherwise, unknown names could fill the memory."""
    sessions = FetchSessions(Random(1), 10, lambda: 0)
    longest, too_long = "t" * 249, "t" * 250

    def of(name: str) -> OrderedDict[SessionKey, Want]:
        return OrderedDict({(name, 0): Want(name, ID, 0, 0, 1000, -1)})

    kept = sessions.open(of(longest), by_id=False)
    assert kept is not None
    assert sessions.open(of(too_long), by_id=False) is None
    with pytest.raises(KafkaError) as refused:
        sessions.update(kept, of(too_long), [])
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == sessions.partitions == 0
