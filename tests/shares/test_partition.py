"""Tests the records in flight of a share partition: the members that hold them, their delivery counts, and the
writes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.shares.batches import TERMINAL, DeliveryState, StateBatch, merged
from kpybroker.shares.partition import Acknowledgement, Acquired, Limits, SharePartition, Span, Wish
from kpybroker.shares.runs import Letter

LIMITS = Limits(lock_ms=1_000, max_deliveries=5, max_in_flight=40)
ANY = Wish(500, 500)
ACCEPT, RELEASE, REJECT, RENEW = (1,), (2,), (3,), (4,)
AVAILABLE, ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED


def tens(count: int, first: int = 0) -> list[Span]:
    return [(first + 10 * number, first + 10 * number + 9) for number in range(count)]


def fetched(
    share: SharePartition, log: list[Span], member: str = "m", wish: Wish = ANY, now_ms: int = 0
) -> list[Acquired]:
    offset = share.next_offset(LIMITS)
    if offset is None:
        return []
    return share.acquire(member, [each for each in log if each[1] >= offset], wish, LIMITS, now_ms)


def write(share: SharePartition, now_ms: int = 0, *, done: bool = True) -> Any:
    """Write all queued changes."""
    told = share.take_write()
    assert told is not None
    share.written(told, LIMITS, now_ms, done=done)
    return told


def acked(share: SharePartition, first: int, last: int, kinds: Any = ACCEPT, member: str = "m") -> Any:
    share.acknowledge(member, [Acknowledgement(first, last, kinds)], LIMITS, 0)
    return write(share)


def code_of(share: SharePartition, member: str, *told: tuple[int, int, Any], now_ms: int = 0) -> int:
    try:
        share.acknowledge(member, [Acknowledgement(*each) for each in told], LIMITS, now_ms)
    except KafkaError as refusal:
        return int(refusal.code)
    return 0


# -- the responses of Apache Kafka ------------------------------------------------------------------------------------


def test_batches_are_acquired_whole_unless_the_fetch_is_exact() -> None:
    assert fetched(SharePartition(0), tens(4), wish=Wish(5, 500)) == [Acquired(0, 9, 1)]
    assert fetched(SharePartition(0), tens(4), wish=Wish(15, 500)) == [Acquired(0, 19, 1)]
    assert fetched(SharePartition(0), tens(3), wish=Wish(500, 15)) == [Acquired(0, 19, 1), Acquired(20, 29, 1)]
    share = SharePartition(0)
    exact = Wish(4, 500, is_exact=True)
    assert [fetched(share, tens(1), wish=exact) for _ in range(3)] == [
        [Acquired(0, 3, 1)],
        [Acquired(4, 7, 1)],
        [Acquired(8, 9, 1)],
    ]


def test_a_record_that_keeps_coming_back_is_delivered_alone_at_last() -> None:
    share, log, sizes = SharePartition(0), [(0, 7)], []
    while not share.start:
        sizes.append(sum(each.last - each.first + 1 for each in fetched(share, log)))
        share.release("m", LIMITS)
        if len(sizes) > 20:
            break
    while fetched(share, log):
        sizes.append(1)
        share.release("m", LIMITS)
    assert sizes[:8] == [8, 8, 8, 4, 1, 1, 1, 1] or sizes[:4] == [8, 8, 8, 4]
    assert share.start == 8


def test_gaps_and_acknowledged_records_move_the_start_once_they_are_written() -> None:
    share = SharePartition(0)
    assert fetched(share, tens(2)) == [Acquired(0, 19, 1)]
    assert acked(share, 0, 4).start == 0
    assert share.start == 5
    told = acked(share, 5, 9, (1, 2, 3, 0, 1))
    assert (told.start, told.complete_count) == (5, 4)
    assert told.batches == (
        StateBatch(5, 5, 2, 1),
        StateBatch(6, 6, 0, 1),
        StateBatch(7, 7, 4, 1),
        StateBatch(8, 8, 4, 1),
        StateBatch(9, 9, 2, 1),
    )
    assert share.start == 6
    assert fetched(share, tens(2)) == [Acquired(6, 6, 2)]


def test_what_is_wrong_with_an_acknowledgement() -> None:
    share = SharePartition(0)
    fetched(share, tens(2))
    acked(share, 0, 4)
    assert code_of(share, "m", (50, 51, ACCEPT)) == code_of(share, "m", (15, 20, ACCEPT)) == ErrorCode.INVALID_REQUEST
    assert code_of(share, "n", (10, 10, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
    assert code_of(share, "m", (0, 3, ACCEPT)) == 0, "it is below the start"
    assert code_of(share, "m", (10, 12, ACCEPT), (12, 13, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
    assert code_of(share, "m", (10, 10, ACCEPT), (30, 30, ACCEPT)) == ErrorCode.INVALID_REQUEST
    assert code_of(share, "m", (10, 10, ACCEPT)) == 0, "all or nothing: it was not touched"
    assert code_of(share, "m", (10, 10, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE, "it is being written"


def test_after_the_lock_the_record_is_anybodys() -> None:
    share = SharePartition(0)
    fetched(share, tens(1))
    assert share.acknowledge("m", [Acknowledgement(5, 5, RENEW)], LIMITS, 900) is None
    assert not share.expire(LIMITS, 999)
    assert share.expire(LIMITS, 1_000)
    assert fetched(share, tens(1), "n", now_ms=1_000) == [Acquired(0, 4, 2), Acquired(6, 9, 2)]
    assert code_of(share, "m", (0, 0, ACCEPT), now_ms=1_000) == ErrorCode.INVALID_RECORD_STATE
    assert code_of(share, "m", (5, 5, ACCEPT), now_ms=1_000) == 0


def test_the_lock_may_end_while_the_acknowledgement_is_written() -> None:
    for done in (True, False):
        share = SharePartition(0)
        fetched(share, [(0, 0)])
        share.acknowledge("m", [Acknowledgement(0, 0, ACCEPT)], LIMITS, 0)
        told = share.take_write()
        assert told is not None
        assert not share.expire(LIMITS, 5_000)
        assert fetched(share, [(0, 0)], "n", now_ms=5_000) == []
        share.written(told, LIMITS, 5_000, done=done)
        assert fetched(share, [(0, 0)], "n", now_ms=5_000) == ([] if done else [Acquired(0, 0, 2)])


def test_aborted_batches_are_archived() -> None:
    share = SharePartition(0)
    found = share.acquire("m", [(0, 2), (3, 9), (10, 10), (11, 13)], ANY, LIMITS, 0, aborted=[(0, 2), (10, 10)])
    assert found == [Acquired(3, 9, 1), Acquired(11, 13, 1)]
    assert share.start == 3


def test_deleted_records_are_archived_unless_somebody_holds_them() -> None:
    share = SharePartition(0)
    fetched(share, tens(2))
    acked(share, 0, 9, RELEASE)
    assert share.cut_start(15)
    assert share.start == 10
    assert share.expire(LIMITS, 1_000)
    assert share.cut_start(15)
    assert (share.start, share.next_offset(LIMITS)) == (15, 15)
    assert share.cut_start(99)
    assert (share.start, share.end) == (99, 98)


def test_what_the_coordinator_does_not_know_was_never_delivered() -> None:
    share = SharePartition(0, [StateBatch(3, 4, 0, 1), StateBatch(8, 8, 2, 1)])
    assert fetched(share, tens(1)) == [Acquired(0, 2, 1), Acquired(3, 4, 2), Acquired(5, 7, 1), Acquired(9, 9, 1)]


# -- laws --------------------------------------------------------------------------------------------------------------

KINDS = st.sampled_from([0, 1, 2, 3, 4])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9)),
        st.tuples(st.just("fetch"), st.sampled_from("ab"), st.integers(1, 30), st.integers(1, 12), st.booleans()),
        st.tuples(st.just("ack"), st.sampled_from("ab"), st.integers(0, 8), st.integers(0, 8), KINDS),
        st.tuples(st.just("acks"), st.sampled_from("ab"), st.lists(KINDS, min_size=1, max_size=6)),
        st.tuples(st.just("take")),
        st.tuples(st.just("written"), st.booleans()),
        st.tuples(st.just("release"), st.sampled_from("ab")),
        st.tuples(st.just("wait"), st.integers(1, 1_500)),
        st.tuples(st.just("cut"), st.integers(0, 9)),
    ),
    max_size=50,
)


class Game:
    """A share partition, its log, and the state that its coordinator has stored."""

    def __init__(self) -> None:
        self.share = SharePartition(0)
        self.log: list[Span] = [(0, 4)]
        self.now_ms = 0
        self.under_way: Any = None
        self.told: tuple[StateBatch, ...] = ()
        self.told_start = 0

    def step(self, what: str, *with_: Any) -> None:
        share, states = self.share, {offset: rest for offset, *rest in self.share.states()}
        if what == "append":
            first = self.log[-1][1] + 1
            self.log.append((first, first + with_[0] - 1))
        elif what == "fetch":
            member, count, size, exact = with_
            wish = Wish(count, size, exact)
            same = self.acquired_within_reach(member, wish)
            found = fetched(share, self.log, member, wish, self.now_ms)
            assert same == found, "later batches change nothing"
            self.check_acquired(found, states, count if exact else None)
        elif what in ("ack", "acks"):
            member, kinds = with_[0], with_[-1] if what == "acks" else [with_[-1]]
            first = share.start + (with_[1] if what == "ack" else 0)
            last = first + (with_[2] if what == "ack" else len(kinds) - 1)
            if code_of(share, member, (first, last, kinds), now_ms=self.now_ms):
                assert {offset: rest for offset, *rest in share.states()} == states
        elif what == "take" and self.under_way is None:
            self.under_way = share.take_write()
            if self.under_way is not None:
                self.check_write()
        elif what == "written" and self.under_way is not None:
            if with_[0]:
                self.told = merged(self.told, self.under_way.batches, self.under_way.start)
                self.told_start = self.under_way.start
            share.written(self.under_way, LIMITS, self.now_ms, done=with_[0])
            self.under_way = None
        elif what == "release":
            share.release(with_[0], LIMITS)
        elif what == "wait":
            self.now_ms += with_[0]
            share.expire(LIMITS, self.now_ms)
        elif what == "cut":
            share.cut_start(min(share.start + with_[0], self.log[-1][1]))

    def acquired_within_reach(self, member: str, wish: Wish) -> list[Acquired]:
        """What a copy of the share partition acquires from the batches within reach."""
        offset = self.share.next_offset(LIMITS)
        if offset is None:
            return []
        last = self.share.last_within_reach(offset, wish.max_records, LIMITS)
        return fetched(deepcopy(self.share), [each for each in self.log if each[0] <= last], member, wish, self.now_ms)

    def check_acquired(self, found: list[Acquired], before: Any, exactly: int | None) -> None:
        offsets = [offset for each in found for offset in range(each.first, each.last + 1)]
        assert offsets == sorted(set(offsets)), "ranges are disjoint and ascending"
        for each in found:
            for offset in range(each.first, each.last + 1):
                state, deliveries, _ = before.get(offset, (AVAILABLE, 0, None))
                assert state is AVAILABLE, "nobody else has it"
                assert each.deliveries == deliveries + 1 <= LIMITS.max_deliveries
        assert exactly is None or len(offsets) <= exactly
        assert self.share.in_flight <= LIMITS.max_in_flight + 9

    def check_write(self) -> None:
        write = self.under_way
        assert write.start == self.share.start
        known = {offset: state for offset, state, *_ in self.share.states()}
        for batch in write.batches:
            assert batch.state != ACQUIRED
            # a released record may have been deleted from the log since its release was queued
            changed = [offset for offset in range(batch.first, batch.last + 1) if known.get(offset) not in TERMINAL]
            known.update({offset: batch.state for offset in changed if offset in known})
        pending = {offset for offset, state in known.items() if state in TERMINAL}
        assert write.complete_count == len(pending)


@pytest.mark.slow
@example([("fetch", "a", 1, 1, False), ("ack", "a", 0, 0, 0), ("release", "a"), ("cut", 2), ("take",)])
@given(STEPS)
@settings(max_examples=300)
def test_laws_of_a_reign(steps: list[Any]) -> None:
    game = Game()
    done: set[int] = set()
    start = 0
    for step in steps:
        game.step(*step)
        share = game.share
        assert share.start >= start, "the start never goes back"
        start = share.start
        states = list(share.states())
        assert [offset for offset, *_ in states] == list(range(share.start, share.end + 1)), "without holes"
        for offset, state, _, member in states:
            assert (state is ACQUIRED) == (member is not None)
            assert state in TERMINAL or offset not in done, "what is done stays done"
        done |= {offset for offset, state, *_ in states if state in TERMINAL}
        assert not states or states[0][1] not in TERMINAL
        assert share.end <= game.log[-1][1]


@given(STEPS)
def test_the_next_leader_delivers_nothing_that_was_written_as_done(steps: list[Any]) -> None:
    game = Game()
    for step in steps:
        game.step(*step)
    heir = SharePartition(game.told_start, game.told)
    for batch in game.told:
        if batch.state in TERMINAL:
            for offset, state, *_ in heir.states():
                assert not batch.first <= offset <= batch.last or state in TERMINAL
    assert heir.start <= game.share.start


@pytest.mark.parametrize("done", [True, False])
def test_everything_is_delivered_in_the_end(done: bool) -> None:
    share, log, seen = SharePartition(0), tens(9), set()
    while (offset := share.next_offset(LIMITS)) is not None and offset <= log[-1][1]:
        for each in fetched(share, log):
            seen |= set(range(each.first, each.last + 1))
            if each.deliveries % 2 or not done:
                acked(share, each.first, each.last)
            else:
                acked(share, each.first, each.last, RELEASE)
    assert seen == set(range(90))
    assert share.start == 90


# -- dead letters (KIP-1191) -------------------------------------------------------------------------------------------

LETTERS = LIMITS._replace(has_letters=True)


def test_records_are_archived_only_when_their_dead_letters_are_written() -> None:
    share = SharePartition(0)
    fetched(share, tens(1))
    share.acknowledge("m", [Acknowledgement(0, 9, (3, 3, 1, 0, 3, 1, 1, 1, 1, 1))], LETTERS, 0)
    assert share.letters() == [], "not before the state is stored"
    assert [batch.state for batch in write(share).batches] == [3, 2, 4, 3, 2]
    assert share.letters() == [Letter(0, 1, 1, True), Letter(4, 4, 1, True)]
    assert (share.start, share.is_at_rest, fetched(share, tens(1))) == (0, False, [])
    share.letters_written(share.letters()[:1])
    assert share.start == 4
    share.letters_written(share.letters())
    assert (share.start, share.letters()) == (10, [])
    assert write(share).batches == (StateBatch(0, 1, 4, 1), StateBatch(4, 4, 4, 1))
    assert share.is_at_rest


def test_another_leader_goes_on_with_the_dead_letters() -> None:
    share = SharePartition(0, [StateBatch(0, 1, 3, 5), StateBatch(2, 2, 3, 1), StateBatch(3, 3, 2, 1)])
    assert (share.start, share.letters()) == (0, [Letter(0, 1, 5, False), Letter(2, 2, 1, False)])
    share.cut_start(3)
    assert (share.start, len(share.letters())) == (0, 2), "a dead letter is written even if its record is deleted"
    share.letters_written(share.letters())
    assert share.start == 4


def test_records_that_were_delivered_too_often_become_dead_letters() -> None:
    share = SharePartition(0)
    for _ in range(5):
        assert fetched(share, [(0, 0)])
        share.release("m", LETTERS)
    assert share.letters() == [Letter(0, 0, 5, False)]
    assert write(share).batches[-1] == StateBatch(0, 0, 3, 5)


def test_a_reject_that_is_not_written_leaves_no_dead_letter() -> None:
    share = SharePartition(0)
    fetched(share, tens(1))
    share.acknowledge("m", [Acknowledgement(0, 4, REJECT)], LETTERS, 0)
    write(share, done=False)
    assert share.letters() == []
    acked(share, 0, 9)
    assert share.start == 10


@given(st.data())
@settings(deadline=None)
def test_each_record_is_archived_or_acknowledged_exactly_when_it_may_be(data: st.DataObject) -> None:
    """In any order of events, a rejected record is archived only after its dead letter was written, and in the end
    every record is in a final state."""
    share, log, handed, rejected = SharePartition(0), tens(3), set[int](), set[int]()
    held: set[int] = set()
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(("fetch", "reject", "accept", "write", "fail", "letters", "leader"))):
            case "fetch":
                held |= {o for each in fetched(share, log) for o in range(each.first, each.last + 1)}
            case ("reject" | "accept") as kind if held:
                offset = data.draw(st.sampled_from(sorted(held)))
                if not code_with(share, offset, REJECT if kind == "reject" else ACCEPT):
                    held.discard(offset)
                    if kind == "reject":
                        rejected.add(offset)
            case ("write" | "fail") as how:
                told = share.take_write()
                if told is not None:
                    share.written(told, LETTERS, 0, done=how == "write")
            case "letters":
                found = share.letters()[: data.draw(st.integers(0, 2))]
                handed |= {o for each in found for o in range(each.first, each.last + 1)}
                share.letters_written(found)
            case _:
                pass
        states = {offset: state for offset, state, _, _ in share.states()}
        gone = {offset for offset in rejected if offset < share.start or states.get(offset) == DeliveryState.ARCHIVED}
        assert gone <= handed


def code_with(share: SharePartition, offset: int, kind: Any) -> int:
    try:
        share.acknowledge("m", [Acknowledgement(offset, offset, kind)], LETTERS, 0)
    except KafkaError as refusal:
        return int(refusal.code)
    return 0
