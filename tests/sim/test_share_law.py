"""Tests the laws of share groups: each violation is reported as one sentence, and permitted behaviour is not
reported."""

from __future__ import annotations

import pytest

from kpybroker.errors import ErrorCode
from kpybroker.shares.batches import DeliveryState, StateBatch
from kpybroker.shares.keys import ShareKey
from kpybroker.shares.partition import AcknowledgeType, SharePartition
from kpybroker.shares.state import ShareState
from kpybroker.sim.actors.catalog import with_actors
from kpybroker.sim.checks.share_states import ShareStates, check_order
from kpybroker.sim.clients.share_sight import ShareSight
from kpybroker.sim.cluster.setup import setup_of
from kpybroker.sim.laws.share_law import Delivery, ShareLaw
from kpybroker.sim.simulation import Simulation
from kpybroker.sim.world.history import History, Sent, SentTransaction

TOPIC, LIMIT, LOCK_S = "topic", 3, 1.0
HERE, LATER, SESSION = object(), object(), object()
"""Two reigns, and a session."""
EPOCHS = {HERE: 3, LATER: 4, None: -1}
ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)
NOT_HELD, FENCED = int(ErrorCode.INVALID_RECORD_STATE), int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class Case:
    """A law with a clock. `holds` is whether the leader would still have the reign and the session."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.holds = True
        self.history = History(lambda: self.now_s)
        self.law = ShareLaw(self.history, TOPIC, LIMIT, lambda delivery, index: self.holds)

    def at(self, now_s: float) -> None:
        self.now_s = now_s + self.history.began_at

    def lets_go(self) -> None:
        """Have the leader end the reign or the session."""
        self.holds = False

    def delivered(
        self, member: str, offset: int = 7, count: int = 1, *, reign: object | None = HERE, asked_s: float | None = None
    ) -> Delivery:
        asked_s = self.history.now_s if asked_s is None else asked_s
        delivery = Delivery(member, 1, offset, count, asked_s, asked_s + LOCK_S, reign, EPOCHS[reign], SESSION)
        self.law.delivered(0, delivery)
        return delivery

    def acknowledged(self, delivery: Delivery, kind: int, code: int | None = 0, *, is_sound: bool = True) -> None:
        """Record the result of an acknowledgement. code: the error code of the response; None if there was no
        response."""
        each = [(delivery, int(kind))]
        self.law.acknowledges(0, each)
        if code is None:
            self.law.unanswered(each)
        elif code:
            self.law.refused(0, each, code, is_sound=is_sound)
        else:
            self.law.confirmed(0, each, self.history.now_s + LOCK_S)

    def writes(self, value: bytes, transaction: SentTransaction | None = None) -> None:
        sent = Sent(value, (TOPIC, 0), -1, False)
        if transaction is not None:
            transaction.add([sent])
        self.history.sends("producer", sent)

    def told(self, sentence: str | None) -> None:
        """Check that there is one breach with this sentence, or none."""
        assert [sentence in breach for breach in self.history.breaches] == ([True] if sentence else [])  # type: ignore[operator]


@pytest.fixture
def case() -> Case:
    return Case()


@pytest.mark.parametrize(
    ("wait_s", "count", "reign", "gives_up", "sentence"),
    [
        (0.5, 2, HERE, None, "is held by ann, but was delivered to bob"),
        (0.5, 2, HERE, RELEASE, None),
        (0.5, 2, HERE, ACCEPT, "was acknowledged, and then delivered to bob"),
        (1.5, 2, HERE, None, None),
        (1.5, 2, HERE, RENEW, "is held by ann, but was delivered to bob"),
        (0.5, 1, LATER, None, None),
        (0.5, 1, None, None, None),
        (1.5, 1, HERE, None, "was delivered to ann and bob with count 1"),
    ],
)
def test_a_record_has_one_holder_in_a_reign(
    case: Case, wait_s: float, count: int, reign: object | None, gives_up: int | None, sentence: str | None
) -> None:
    first = case.delivered("ann")
    case.at(0.9)
    if gives_up is not None:
        case.acknowledged(first, gives_up)
    case.at(max(wait_s, 0.9))
    case.delivered("bob", count=count, reign=reign)
    case.told(sentence)


def test_a_lock_ends_with_the_session(case: Case) -> None:
    case.delivered("ann")
    case.lets_go()
    case.delivered("bob", count=2)
    case.told(None)


def test_a_late_answer_of_an_earlier_delivery_is_no_second_holder(case: Case) -> None:
    case.at(2.0)
    case.delivered("bob", count=2)
    case.delivered("ann", count=1, asked_s=0.0)
    case.told(None)


@pytest.mark.parametrize(
    ("count", "sentence"), [(1, None), (3, None), (4, "4 times, but the limit is 3"), (0, "0 times")]
)
def test_counts_stay_within_the_limit(case: Case, count: int, sentence: str | None) -> None:
    case.delivered("ann", count=count)
    case.told(sentence)


@pytest.mark.parametrize(
    ("counts", "reigns", "lost", "sentence"),
    [
        ((1, 2, 3), (HERE,) * 3, 0, None),
        ((1, 3), (HERE,) * 2, 0, "with counts [1, 3]"),
        ((1, 3), (HERE,) * 2, 1, None),
        ((1, 3), (HERE, LATER), 0, None),
        ((2, 3), (HERE,) * 2, 0, None),
    ],
)
def test_counts_rise_by_one(
    case: Case, counts: tuple[int, ...], reigns: tuple[object, ...], lost: int, sentence: str | None
) -> None:
    for number, (count, reign) in enumerate(zip(counts, reigns, strict=True)):
        case.at(2.0 * number)
        case.delivered("ann", count=count, reign=reign)
    for _ in range(lost):
        case.law.fetch_lost([0])
    case.law.check_counts()
    case.told(sentence)


@pytest.mark.parametrize(
    ("kind", "code", "reign", "asked_s", "sentence"),
    [
        (ACCEPT, 0, LATER, 1.0, "was acknowledged, and then delivered to bob again"),
        (REJECT, 0, LATER, 1.0, "was acknowledged, and then delivered to bob again"),
        (RELEASE, 0, LATER, 1.0, None),
        (ACCEPT, None, LATER, 1.0, None),
        (ACCEPT, FENCED, LATER, 1.0, None),
        (ACCEPT, 0, LATER, 0.2, None),
        (ACCEPT, 0, HERE, 0.2, "was acknowledged, and then delivered to bob again"),
        (ACCEPT, 0, None, 1.0, None),
    ],
)
def test_an_acknowledged_record_is_not_delivered_again(
    case: Case, kind: int, code: int | None, reign: object, asked_s: float, sentence: str | None
) -> None:
    first = case.delivered("ann")
    case.at(0.5)
    case.acknowledged(first, kind, code)
    case.at(1.5)
    case.delivered("bob", count=2, reign=reign, asked_s=asked_s)
    case.told(sentence)


def test_a_deposed_leader_may_deliver_an_acknowledged_record(case: Case) -> None:
    case.acknowledged(case.delivered("ann", reign=LATER), ACCEPT)
    case.at(1.5)
    case.delivered("bob", reign=HERE)
    case.told(None)


@pytest.mark.parametrize(
    ("wait_s", "code", "is_sound", "sentence"),
    [
        (0.5, NOT_HELD, True, "ann holds offset 7 of topic-0, but its acknowledgement was refused"),
        (1.5, NOT_HELD, True, None),
        (0.5, NOT_HELD, False, None),
        (0.5, FENCED, True, None),
    ],
)
def test_a_holder_is_not_refused(case: Case, wait_s: float, code: int, is_sound: bool, sentence: str | None) -> None:
    first = case.delivered("ann")
    case.at(wait_s)
    case.acknowledged(first, ACCEPT, code, is_sound=is_sound)
    case.told(sentence)


@pytest.mark.parametrize(("earlier", "sentence"), [(NOT_HELD, "was refused"), (None, None), (FENCED, None)])
def test_a_refused_acknowledgement_leaves_the_record_as_it_was(
    case: Case, earlier: int | None, sentence: str | None
) -> None:
    first = case.delivered("ann")
    case.acknowledged(first, ACCEPT, earlier, is_sound=False)
    case.acknowledged(first, ACCEPT, NOT_HELD)
    case.told(sentence)


@pytest.mark.parametrize(
    ("kind", "code", "count", "lost", "sentence"),
    [
        (None, 0, 1, 0, "was delivered 1 times, and never acknowledged"),
        (ACCEPT, 0, 1, 0, None),
        (REJECT, 0, 1, 0, None),
        (RELEASE, 0, 1, 0, "was delivered 1 times, and never acknowledged"),
        (RELEASE, 0, LIMIT, 0, None),
        (RELEASE, 0, LIMIT - 1, 1, None),
        (ACCEPT, None, 1, 0, None),
        (ACCEPT, FENCED, 1, 0, None),
        (ACCEPT, NOT_HELD, 1, 0, "was delivered 1 times, and never acknowledged"),
    ],
)
def test_nothing_is_skipped(
    case: Case, kind: int | None, code: int | None, count: int, lost: int, sentence: str | None
) -> None:
    delivery = case.delivered("ann", count=count)
    if kind is not None:
        case.acknowledged(delivery, kind, code, is_sound=False)
    for _ in range(lost):
        case.law.fetch_lost([0])
    case.law.check_end(0, [(7, b"value")], committed=False)
    case.told(sentence)


def test_a_record_that_nobody_was_delivered_is_skipped(case: Case) -> None:
    case.law.check_end(0, [(7, b"value")], committed=False)
    case.told("offset 7 of topic-0 was delivered 0 times")


@pytest.mark.parametrize(
    ("delivered", "told", "sentence"),
    [((), None, None), ((9,), None, None), ((9,), 7, "offset 7 of topic-0 was delivered 0 times"), ((), 8, None)],
)
def test_a_group_that_begins_late_skips_nothing_from_its_start_on(
    case: Case, delivered: tuple[int, ...], told: int | None, sentence: str | None
) -> None:
    case.law.begins_late(0)
    for offset in delivered:
        case.acknowledged(case.delivered("ann", offset), ACCEPT)
    if told is not None:
        case.law.told_start(0, told)
    case.law.check_end(0, [(7, b"value")], committed=False)
    case.told(sentence)


@pytest.mark.parametrize(
    ("start", "answer", "is_delivered_again", "skipped"),
    [
        (8, "confirmed", False, None),
        (0, "confirmed", True, "never acknowledged"),
        (0, "refused", False, None),
        (0, "none", True, None),
    ],
)
def test_altered_offsets_begin_an_era(
    case: Case, start: int, answer: str, is_delivered_again: bool, skipped: str | None
) -> None:
    case.acknowledged(case.delivered("ann"), ACCEPT)
    case.law.changes_offsets(0, start)
    if answer == "confirmed":
        case.law.offsets_changed(0, start)
    elif answer == "none":
        case.law.doubts_offsets(0)
    case.at(5.0)
    if is_delivered_again:
        case.acknowledged(case.delivered("bob", reign=LATER), RELEASE)
    case.law.check_end(0, [(7, b"value")], committed=False)
    case.told(skipped)


@pytest.mark.parametrize(
    ("ranges", "batches", "sentence"),
    [
        ([(0, 2), (4, 5)], [(0, 2), (3, 6)], None),
        ([(4, 5), (0, 2)], [(0, 2), (3, 6)], "out of order"),
        ([(0, 2), (2, 5)], [(0, 2), (3, 6)], "out of order"),
        ([(0, 4)], [(0, 2), (4, 6)], "without its batches"),
    ],
)
def test_ranges_are_disjoint_and_come_with_their_batches(
    case: Case, ranges: list[tuple[int, int]], batches: list[tuple[int, int]], sentence: str | None
) -> None:
    case.law.ranges("ann", 0, ranges, batches)
    case.told(sentence)


@pytest.mark.parametrize(
    ("commits", "outcome", "committed", "sentence"),
    [
        (True, True, True, None),
        (True, None, True, None),
        (False, False, True, "but was not committed"),
        (True, False, True, "but was not committed"),
        (False, False, False, None),
    ],
)
def test_aborted_records_are_not_delivered_as_committed(
    case: Case, commits: bool, outcome: bool | None, committed: bool, sentence: str | None
) -> None:
    transaction = SentTransaction("producer")
    case.writes(b"value", transaction)
    transaction.ask(commit=commits)
    transaction.decide(outcome)
    case.law.read(0, "ann", 7, b"value", committed=committed)
    case.told(sentence)


def test_delivered_records_are_those_of_the_log(case: Case) -> None:
    for value in (b"value", b"other"):
        case.writes(value)
    case.law.read(0, "ann", 7, b"value", committed=False)
    case.told(None)
    case.law.read(0, "bob", 7, b"other", committed=False)
    case.law.read(0, "bob", 8, b"unknown", committed=False)
    case.acknowledged(case.delivered("ann"), ACCEPT)
    case.acknowledged(case.delivered("ann", 8), ACCEPT)
    case.law.check_end(0, [(7, b"other"), (8, b"unknown")], committed=False)
    told = "".join(case.history.breaches)
    assert all(part in told for part in ("is b'other' for bob", "which no producer has sent", "which now has b'other'"))


# ---- states in the memory of nodes

AVAILABLE, DONE = DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED


@pytest.mark.parametrize(
    ("start", "state", "count", "reign", "sentence"),
    [
        (5, AVAILABLE, 2, HERE, None),
        (5, DONE, 2, HERE, None),
        (4, AVAILABLE, 2, HERE, "the start of share partition 0 went back from 5 to 4"),
        (5, AVAILABLE, 1, HERE, "was delivered 2 times, now 1"),
        (5, AVAILABLE, 1, LATER, None),
        (5, AVAILABLE, LIMIT + 1, HERE, "was delivered 2 times, now 4"),
    ],
)
def test_in_a_reign_states_go_forward(
    case: Case, start: int, state: DeliveryState, count: int, reign: object, sentence: str | None
) -> None:
    states = ShareStates(case.history, ShareSight((), "group"), case.law, LIMIT, 10)
    states.look_at(HERE, 0, SharePartition(5, [StateBatch(5, 5, AVAILABLE, 2), StateBatch(6, 6, AVAILABLE, 2)]))
    states.look_at(reign, 0, SharePartition(start, [StateBatch(5, 5, AVAILABLE, 2), StateBatch(6, 6, state, count)]))
    case.told(sentence)


def test_a_final_state_stays_in_a_reign(case: Case) -> None:
    states = ShareStates(case.history, ShareSight((), "group"), case.law, LIMIT, 10)
    for state in (DONE, AVAILABLE):
        states.look_at(HERE, 0, SharePartition(5, [StateBatch(5, 5, AVAILABLE, 1), StateBatch(6, 6, state, 2)]))
    case.told("was ACKNOWLEDGED, and is AVAILABLE")


def test_records_in_flight_are_limited(case: Case) -> None:
    states = ShareStates(case.history, ShareSight((), "group"), case.law, LIMIT, 10)
    states.look_at(HERE, 0, SharePartition(0, [StateBatch(0, 500, AVAILABLE, 1)]))
    case.told("501 records of share partition 0 are in flight")


@pytest.mark.parametrize(
    ("state_epoch", "leader_epoch", "start", "sentence"),
    [
        (3, 4, 9, None),
        (3, 5, 9, None),
        (4, 0, 0, None),
        (2, 4, 9, "the state epoch of"),
        (3, 3, 9, "the leader epoch of"),
        (3, 4, 8, "went back from 9 to 8"),
    ],
)
def test_stored_states_go_forward(
    case: Case, state_epoch: int, leader_epoch: int, start: int, sentence: str | None
) -> None:
    key = ShareKey("group", bytes(16), 0)
    check_order(case.history, key, ShareState(0, 3, 4, 9), ShareState(1, state_epoch, leader_epoch, start))
    case.told(sentence)


# ---- the actor

SHORT_SEED = 273


@pytest.mark.slow
@pytest.mark.parametrize("brokers", [1, 3])
def test_share_groups_keep_the_contract(brokers: int) -> None:
    outcome = Simulation(with_actors(setup_of(SHORT_SEED, brokers=brokers), ("shares",), only=True)).run()
    assert outcome.breaches == []
    shows = ("records delivered to share consumers", "records acknowledged", "share fetches")
    assert all(outcome.counts[what] > 0 for what in shows)
