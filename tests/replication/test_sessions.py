"""Sessions: epochs count up, the limit holds, and turns go round."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.sessions import EPOCH_MAX, Session, Sessions, Want, Wanted

ID = bytes(range(16))


def wants(*indices: int, offset: int = 0) -> OrderedDict[Wanted, Want]:
    return OrderedDict((("t", index), Want("t", ID, index, offset, 1000, -1)) for index in indices)


def opened(sessions: Sessions) -> Session:
    session = sessions.open(wants(0), by_id=False)
    assert session is not None
    return session


def code_of(sessions: Sessions, session_id: int, epoch: int, *, by_id: bool = False) -> int:
    try:
        sessions.resume(session_id, epoch, by_id=by_id)
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.NONE


def test_an_epoch_is_good_once() -> None:
    sessions = Sessions(Random(1), 10)
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


def test_epochs_wrap_past_those_with_a_meaning() -> None:
    sessions = Sessions(Random(1), 10)
    one = opened(sessions)
    one.epoch = EPOCH_MAX
    assert code_of(sessions, one.id, EPOCH_MAX) == ErrorCode.NONE
    assert code_of(sessions, one.id, 1) == ErrorCode.NONE


def test_a_closed_session_is_unknown() -> None:
    sessions = Sessions(Random(1), 10)
    one = opened(sessions)
    sessions.close(one.id)
    sessions.close(one.id)
    assert code_of(sessions, one.id, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("limit", [0, -1])
def test_without_room_there_are_no_sessions(limit: int) -> None:
    assert Sessions(Random(1), limit).open(wants(0), by_id=False) is None


@given(limit=st.integers(1, 4), uses=st.lists(st.integers(0, 7), max_size=30))
def test_the_one_unused_for_longest_gives_way(limit: int, uses: list[int]) -> None:
    """Against a plain list, least recently used first."""
    sessions = Sessions(Random(1), limit)
    alive: list[Session] = []
    every: list[Session] = []
    for use in uses:
        if use < len(every):
            one = every[use]
            code = code_of(sessions, one.id, one.epoch)
            assert code == (ErrorCode.NONE if one in alive else ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if one in alive:
                alive.remove(one)
                alive.append(one)
        else:
            one = opened(sessions)
            assert one.id not in {0, *(other.id for other in alive)}
            every.append(one)
            alive = [*alive, one][-limit:]
        assert len(sessions) == len(alive) <= limit


def test_updates_change_positions_and_keep_what_was_told() -> None:
    session = Session(1, by_id=False, wants=wants(0, 1, 2))
    session.wants["t", 1].told_high_watermark = 8
    session.update(wants(1, 3, offset=7), [("t", 0), ("t", 9)])
    assert [(want.index, want.fetch_offset) for want in session.wants.values()] == [(1, 7), (2, 0), (3, 7)]
    assert session.wants["t", 1].told_high_watermark == 8


@given(served=st.lists(st.integers(0, 3), max_size=20))
def test_who_waits_longest_stands_first(served: list[int]) -> None:
    session = Session(1, by_id=False, wants=wants(0, 1, 2, 3))
    for index in served:
        session.had_its_turn(("t", index))
    last = {index: at for at, index in enumerate(served)}
    assert [want.index for want in session.wants.values()] == sorted(range(4), key=lambda i: (last.get(i, -1), i))
