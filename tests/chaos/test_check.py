"""Tests that the checker accepts every possible history, and catches every kind of mutation of it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.check import SHARED_SLACK_S, Kind, agree, repeated, violations
from chaos.history import (
    SOMEWHERE,
    UNKNOWN,
    Commit,
    Delivery,
    Fetched,
    Found,
    History,
    Latest,
    Place,
    Transaction,
    Write,
    key_of,
)
from chaos.incarnations import Incarnation, Incarnations
from chaos.registers import Decision, Register
from kpybroker.wire.records.batch import Record, encode_batch

SEEDS = st.integers(0, 2**32)
PLACES = [Place("t", 0), Place("t", 1)]
PLAIN, TRANSACTIONAL = 1, 7
GROUP = "g"
RIGHTS = ("allowed", "denied")
PASSWORDS = ("first", "second", "")
NODES = (1, 2)


def valid(random: Random) -> History:
    """A valid history of clients: with unacknowledged records, missing offsets, and readers whose positions are
    reset."""
    history = History()
    for place in PLACES:
        _write(history, place, random)
        _read(history, place, random)
        _look(history, place, random)
        _commit(history, place, random)
    _transact(history, random)
    _share(history, random)
    _decide(history.rights, RIGHTS, random)
    _decide(history.passwords, PASSWORDS, random)
    return history


def _write(history: History, place: Place, random: Random) -> None:
    numbers = {PLAIN: 0, PLAIN + 1: 0}
    offset, found = random.randrange(3), Found()
    for _ in range(random.randrange(12, 30)):
        producer = random.choice(list(numbers))
        number = numbers[producer]
        numbers[producer] += 1
        is_there = random.random() < 0.9 or number < 3
        is_acked = is_there and (random.random() < 0.8 or number < 3)
        told = SOMEWHERE if random.random() < 0.1 and number > 3 else offset
        history.ack(place, producer, number, told if is_acked else UNKNOWN)
        if is_there:
            found.add(offset, key_of(producer, number))
            offset += random.choice((1, 1, 1, 2))
    for producer in numbers:  # a few records that are certainly stored
        for number in range(numbers[producer], numbers[producer] + 3):
            history.ack(place, producer, number, offset)
            found.add(offset, key_of(producer, number))
            offset += 1
    history.final[place] = found


def _read(history: History, place: Place, random: Random) -> None:
    rows = list(history.final[place])
    at = 0
    while at < len(rows):
        history.read(place, "reader", *rows[at])
        at = max(at - 3, 0) if random.random() < 0.1 else at + 1


def _look(history: History, place: Place, random: Random) -> None:
    now, epoch, offset = 0.0, 0, 5
    rows = history.latest[place] = []
    for _ in range(20):
        now += 1.0
        if random.random() < 0.2:
            rows.append(Latest(now, now + 0.5, epoch, offset))  # the last response of a leader that is cut off
            epoch += 1
        offset += random.randrange(3)
        rows.append(Latest(now, now + random.choice((0.5, 3.0)), epoch, offset))
        if epoch and random.random() < 0.3:
            rows.append(Latest(now + 0.1, now + 0.2, epoch - 1, _highest_of(rows, epoch - 1)))
    rows.append(Latest(now + 10, now + 11, epoch, offset))


def _highest_of(rows: list[Latest], epoch: int) -> int:
    return max((row.offset for row in rows if row.epoch <= epoch), default=0)


def _commit(history: History, place: Place, random: Random) -> None:
    now, offset = 0.0, 1
    for _ in range(10):
        now += 1
        offset += random.randrange(4)
        is_acked = random.random() < 0.8
        history.commit(GROUP, place, Commit(now, now + 0.1 if is_acked else math.inf, offset))
        late = [one.offset for one in history.commits[GROUP, place] if math.isinf(one.acked_s)]
        acked = [one.offset for one in history.commits[GROUP, place] if not math.isinf(one.acked_s)]
        told = random.choice([max(acked, default=-1), *late])
        history.fetched.setdefault((GROUP, place), []).append(Fetched(now + 0.5, told))
    history.commit(GROUP, place, Commit(now + 1, now + 2, offset + 1))
    history.fetched[GROUP, place].append(Fetched(now + 3, offset + 1))


def _share(history: History, random: Random) -> None:
    """Records are delivered until their acceptance is confirmed; a worker may still hold one for a while."""
    shared, now = history.shared, 0.0
    for place in PLACES:
        shared.stored[place] = set(range(10))
        for offset in range(12):  # two without an acknowledgement to the producer
            for _ in range(random.randrange(1, 4)):
                now += 1
                shared.deliver(place, Delivery(now, offset, is_last=False))
            if offset < 3 or random.random() < 0.8:
                shared.accept(place, [offset], now + 0.5)
                if random.random() < 0.2:
                    shared.deliver(place, Delivery(now + SHARED_SLACK_S, offset, is_last=False))
            elif random.random() < 0.5:
                shared.deliver(place, Delivery(now + 1000, offset, is_last=True))


def _transact(history: History, random: Random) -> None:
    number = 0
    ends: list[bool | None] = [True, False, *(random.choice((True, False, None)) for _ in range(5))]
    for end in ends:
        one = Transaction(committed=end)
        is_there = end or (end is None and random.random() < 0.5)
        for _ in range(random.randrange(2, 5)):
            place = random.choice(PLACES)
            key = key_of(TRANSACTIONAL, number)
            number += 1
            one.writes.append(Write(place, key))
            if is_there:
                history.final[place].add(history.final[place].offsets[-1] + 1, key)
        history.transactions.append(one)


def _decide(register: Register, values: tuple[str, ...], random: Random) -> None:
    """Add decisions of nodes, which apply changes at different times, and have not always shown which changes they have
    applied."""
    for number in range(12):
        register.change(number, values[number % len(values)])
    for node_id in NODES:
        now, number = 0.2, 0
        while number < 11 or now < 11.2:
            number = random.randint(number, min(int(now), 11))
            if random.random() < 0.5:
                register.know(node_id, now, number)
            value = random.choice(values)
            is_it = register.changes[number].value == value
            register.decisions.append(Decision(node_id, now + 0.1, now + 0.2, value, is_it))
            now += random.choice((0.3, 0.8))


# ---- mutations: each makes the history invalid


def _acked(history: History, random: Random) -> tuple[Place, int, int, int]:
    """(place, producer, number, offset) of a record that was acknowledged."""
    rows = [
        (place, producer, number, offset)
        for (place, producer), offsets in history.acked.items()
        for number, offset in enumerate(offsets)
        if offset not in (UNKNOWN, SOMEWHERE)
    ]
    return random.choice(rows)


def lose(history: History, random: Random) -> None:
    place, _, _, offset = _acked(history, random)
    found = history.final[place]
    at = found.offsets.index(offset)
    del found.offsets[at], found.keys[at]


def duplicate(history: History, random: Random) -> None:
    found = history.final[random.choice(PLACES)]
    found.add(found.offsets[-1] + 1, random.choice(found.keys))


def send_again(history: History, place: Place, random: Random, first: Incarnation, again: Incarnation) -> None:
    """Replace the place's log with batches of two incarnations. The second repeats a record of the first that was not
    acknowledged."""
    found = history.final[place]
    at, key = random.choice(list(found))
    for (where, _), offsets in history.acked.items():
        if where == place:
            offsets[:] = array("q", (UNKNOWN if offset == at else offset for offset in offsets))
    end = found.offsets[-1] + 1
    found.add(end, key)
    log = history.incarnations[place] = Incarnations()
    log.add(0, first)
    log.add(end, again)


def repeat_in_one_epoch(history: History, random: Random) -> None:
    send_again(history, random.choice(PLACES), random, Incarnation(9, 1), Incarnation(9, 1))


def repeat_in_an_older_epoch(history: History, random: Random) -> None:
    send_again(history, random.choice(PLACES), random, Incarnation(9, 1), Incarnation(9, 0))


def reorder(history: History, random: Random) -> None:
    found = history.final[random.choice(PLACES)]
    ours = [at for at, key in enumerate(found.keys) if key >> 40 == PLAIN]
    one, other = sorted(random.sample(ours, 2))
    found.keys[one], found.keys[other] = found.keys[other], found.keys[one]


def move(history: History, random: Random) -> None:
    place, producer, number, offset = _acked(history, random)
    history.acked[place, producer][number] = offset + random.choice((1, 5))


def change(history: History, random: Random) -> None:
    found = history.reads[random.choice(PLACES), "reader"]
    found.keys[random.randrange(len(found))] = key_of(PLAIN, 10_000)


def read_what_is_gone(history: History, random: Random) -> None:
    place = random.choice(PLACES)
    history.read(place, "reader", history.final[place].offsets[-1] + 7, key_of(PLAIN, 10_000))


def read_aborted(history: History, random: Random) -> None:
    write = next(one for one in history.transactions if one.committed is False).writes[0]
    history.read(write.place, "reader", 3, write.key)


def keep_aborted(history: History, random: Random) -> None:
    write = next(one for one in history.transactions if one.committed is False).writes[0]
    history.final[write.place].add(10_000, write.key)


def tear_transaction(history: History, random: Random) -> None:
    write = next(one for one in history.transactions if one.committed).writes[0]
    found = history.final[write.place]
    at = found.keys.index(write.key)
    del found.offsets[at], found.keys[at]


def recede(history: History, random: Random) -> None:
    answers = history.latest[random.choice(PLACES)]
    last = answers[-1]
    epoch = last.epoch + random.choice((0, 1))
    answers.append(Latest(last.ended_s + 1, last.ended_s + 2, epoch, last.offset - random.choice((1, 2))))


def uncommit(history: History, random: Random) -> None:
    fetches = history.fetched[GROUP, random.choice(PLACES)]
    fetches.append(Fetched(fetches[-1].began_s + 1, random.choice((-1, 0))))


def misbehave(history: History, random: Random) -> None:
    history.incident("it exited by itself")


def _forget(register: Register, random: Random) -> None:
    """Add a decision of a node by a value that it knew to be outdated."""
    node_id = random.choice(NODES)
    register.know(node_id, 100.0, 11)
    former, last = register.changes[10].value, register.changes[11].value
    value, is_it = random.choice(((former, True), (last, False)))
    register.decisions.append(Decision(node_id, 101.0, 102.0, value, is_it))


def forget_a_denial(history: History, random: Random) -> None:
    _forget(history.rights, random)


def forget_a_password(history: History, random: Random) -> None:
    _forget(history.passwords, random)


def let_a_stranger_in(history: History, random: Random) -> None:
    began_s = random.uniform(0.0, 20.0)
    history.passwords.decisions.append(Decision(random.choice(NODES), began_s, began_s + 1, "never right", True))


def withhold(history: History, random: Random) -> None:
    place = random.choice(PLACES)
    history.shared.delivered[place] = [one for one in history.shared.delivered[place] if one.offset != 2]


def deliver_again(history: History, random: Random) -> None:
    place = random.choice(PLACES)
    accepted_s = history.shared.accepted[place][1]
    history.shared.deliver(place, Delivery(accepted_s + SHARED_SLACK_S + 1, 1, is_last=False))


def deliver_to_the_last(history: History, random: Random) -> None:
    place = random.choice(PLACES)
    history.shared.deliver(place, Delivery(history.shared.accepted[place][0] + 1, 0, is_last=True))


MUTATIONS: list[tuple[Callable[[History, Random], None], Kind]] = [
    (lose, Kind.LOST),
    (duplicate, Kind.DUPLICATED),
    (repeat_in_one_epoch, Kind.DUPLICATED),
    (repeat_in_an_older_epoch, Kind.DUPLICATED),
    (reorder, Kind.REORDERED),
    (move, Kind.MOVED),
    (change, Kind.CHANGED),
    (read_what_is_gone, Kind.CHANGED),
    (read_aborted, Kind.ABORTED_READ),
    (keep_aborted, Kind.ABORTED_READ),
    (tear_transaction, Kind.TORN_TRANSACTION),
    (recede, Kind.LATEST_RECEDED),
    (uncommit, Kind.COMMIT_RECEDED),
    (withhold, Kind.NOT_DELIVERED),
    (deliver_again, Kind.DELIVERED_AGAIN),
    (deliver_to_the_last, Kind.DELIVERED_AGAIN),
    (forget_a_denial, Kind.WRONG_RIGHT),
    (forget_a_password, Kind.WRONG_PASSWORD),
    (let_a_stranger_in, Kind.WRONG_PASSWORD),
    (misbehave, Kind.INCIDENT),
]


@given(SEEDS)
@settings(max_examples=200, deadline=None)
def test_a_valid_history_passes(seed: int) -> None:
    assert violations(valid(Random(seed))) == []


@given(SEEDS, st.sampled_from([Incarnation(9, 2), Incarnation(10, 0)]))
@settings(max_examples=60, deadline=None)
def test_a_client_may_send_again_in_its_next_epoch(seed: int, again: Incarnation) -> None:
    random = Random(seed)
    history = valid(random)
    send_again(history, random.choice(PLACES), random, Incarnation(9, 1), again)
    assert [one for one in violations(history) if one.kind is Kind.DUPLICATED] == []
    assert repeated(history) == 1


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(-1, 5), st.integers(0, 3)), max_size=20), st.integers(0, 60))
def test_a_log_says_who_wrote_it(rows: list[tuple[int, int, int]], cut: int) -> None:
    log, whose, end = b"", [], 0
    for count, producer_id, epoch in rows:
        records = [Record(delta, 0, None, b"v", ()) for delta in range(count)]
        log += encode_batch(records, base_offset=end, producer_id=producer_id, producer_epoch=epoch)
        whose += [Incarnation(producer_id, epoch)] * count
        end += count
    found = Incarnations.of_log(log + log[:cut])
    assert [found.at(offset) for offset in range(end)] == whose


@pytest.mark.parametrize(("mutate", "kind"), MUTATIONS, ids=lambda it: getattr(it, "__name__", None))
@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_every_mutation_is_caught(mutate: Callable[[History, Random], None], kind: Kind, seed: int) -> None:
    random = Random(seed)
    history = valid(random)
    mutate(history, random)
    assert kind in {violation.kind for violation in violations(history)}


def test_every_kind_has_a_mutation() -> None:
    assert {kind for _, kind in MUTATIONS} == set(Kind)


def test_logs_that_differ_are_reported() -> None:
    place = Place("t", 0)
    assert list(agree(place, {1: b"abc", 2: b"abc", 3: b"abc"})) == []
    assert list(agree(place, {1: b"abc", 2: b"abd"})) == ["the logs of t-0 on nodes 1 and 2 differ from byte 2 on"]
    assert "3 and 2 bytes" in next(agree(place, {1: b"abc", 2: b"ab"}))
