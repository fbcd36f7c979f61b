"""Checks the history of a run against the guarantees. This module has a rule for each kind of violation, and
`tests/chaos/test_check.py` has a mutation that the rule must catch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from chaos.history import PRODUCER_SHIFT, SOMEWHERE, UNKNOWN, Commit, Fetched, History, Latest, Place, key_of, name_of
from chaos.incarnations import Incarnations

SHARED_SLACK_S = 60.0
"""How long a share consumer may hold a record before it gives the record to its application: some polls and commits."""
SHOWN_MAX = 20
"""The most violations of one kind that are listed; the others are only counted."""


class Kind(Enum):
    """The kinds of violations."""

    LOST = "an acknowledged record is missing"
    DUPLICATED = "a record is stored twice in one producer epoch"
    REORDERED = "records of one producer are not in the order in which it sent them"
    MOVED = "a record is at another offset than acknowledged"
    CHANGED = "an offset has another value than was read there before"
    ABORTED_READ = "a record of an aborted transaction was read"
    TORN_TRANSACTION = "only part of a committed transaction is visible"
    LATEST_RECEDED = "a latest offset decreased"
    COMMIT_RECEDED = "a committed offset decreased"
    NOT_DELIVERED = "a record was not delivered to a share group"
    DELIVERED_AGAIN = "a record was delivered again to a share group that had accepted it"
    WRONG_RIGHT = "a node served a principal after applying a DENY, or refused one after applying the removal"
    WRONG_PASSWORD = "a login succeeded with a replaced password, or failed with the valid password"
    INCIDENT = "a client or a node failed in a forbidden way"


class Violation(NamedTuple):
    kind: Kind
    text: str


def violations(history: History) -> list[Violation]:
    """All violations of the guarantees, at most SHOWN_MAX of each kind."""
    rules: tuple[Callable[[History], Iterator[Violation]], ...] = (
        _of_records,
        _of_acknowledgements,
        _of_reads,
        _of_transactions,
        _of_latest_offsets,
        _of_commits,
        _of_share_groups,
        _of_rights,
        _of_passwords,
    )
    found = [Violation(Kind.INCIDENT, text) for text in history.incidents]
    for rule in rules:
        shown: dict[Kind, int] = {}
        for violation in rule(history):
            count = shown[violation.kind] = shown.get(violation.kind, 0) + 1
            if count <= SHOWN_MAX:
                found.append(violation)
        found += [
            Violation(kind, f"... and {count - SHOWN_MAX} more") for kind, count in shown.items() if count > SHOWN_MAX
        ]
    return found


def _at(place: Place, offset: int) -> str:
    return f"{place.topic}-{place.partition} at {offset}"


def _of_records(history: History) -> Iterator[Violation]:
    """At the end every record is stored once per producer epoch, and the records of each producer are in order."""
    for place, found in history.final.items():
        incarnations = history.incarnations.get(place, Incarnations())
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for offset, key in found:
            if key in first:
                if incarnations.is_repeated(first[key], offset):
                    continue
                text = f"{name_of(key)} is in {_at(place, first[key])} and at {offset}"
                yield Violation(Kind.DUPLICATED, text)
                continue
            first[key] = offset
            producer = key >> PRODUCER_SHIFT
            if key < last.get(producer, -1):
                text = f"{name_of(key)} is in {_at(place, offset)}, after {name_of(last[producer])}"
                yield Violation(Kind.REORDERED, text)
            last[producer] = max(key, last.get(producer, -1))


def repeated(history: History) -> int:
    """How many records are repeated because the client started a new epoch and resent them (KIP-360)."""
    count = 0
    for place, found in history.final.items():
        first: dict[int, int] = {}
        incarnations = history.incarnations.get(place, Incarnations())
        count += sum(incarnations.is_repeated(first.setdefault(key, offset), offset) for offset, key in found)
    return count


def _of_acknowledgements(history: History) -> Iterator[Violation]:
    """Acknowledged records exist, at the acknowledged offset."""
    where = {place: {key: offset for offset, key in found} for place, found in history.final.items()}
    for (place, producer), offsets in history.acked.items():
        there = where.get(place, {})
        for number, offset in enumerate(offsets):
            if offset == UNKNOWN:
                continue
            key = key_of(producer, number)
            at = there.get(key)
            if at is None:
                yield Violation(Kind.LOST, f"{name_of(key)} was acknowledged in {_at(place, offset)}")
            elif offset not in (SOMEWHERE, at):
                yield Violation(Kind.MOVED, f"{name_of(key)} was acknowledged in {_at(place, offset)}, but is at {at}")


def _of_reads(history: History) -> Iterator[Violation]:
    """A record that was read at an offset stays at this offset."""
    there = {place: dict(iter(found)) for place, found in history.final.items()}
    aborted = {write.key for one in history.transactions if one.committed is False for write in one.writes}
    for (place, reader), found in history.reads.items():
        final = there.get(place, {})
        for offset, key in found:
            if key in aborted:
                yield Violation(Kind.ABORTED_READ, f"{reader} read {name_of(key)} in {_at(place, offset)}")
            elif final.get(offset) != key:
                now = "nothing" if offset not in final else name_of(final[offset])
                text = f"{reader} read {name_of(key)} in {_at(place, offset)}; now it has {now}"
                yield Violation(Kind.CHANGED, text)


def _of_transactions(history: History) -> Iterator[Violation]:
    """Transactions are atomic."""
    there = {place: set(found.keys) for place, found in history.final.items()}
    for number, one in enumerate(history.transactions):
        present = [write for write in one.writes if write.key in there.get(write.place, ())]
        if one.committed is False and present:
            yield Violation(Kind.ABORTED_READ, f"{name_of(present[0].key)} of aborted transaction {number} is stored")
        elif (present and len(present) < len(one.writes)) or (one.committed and len(present) < len(one.writes)):
            text = f"{len(present)} of {len(one.writes)} records of transaction {number} are stored"
            yield Violation(Kind.TORN_TRANSACTION, text)


def _of_latest_offsets(history: History) -> Iterator[Violation]:
    """No latest offset is below an earlier latest offset from the same or an earlier leader epoch.

    A leader of an older epoch may be cut off without having heard of its successor, so it is compared only with earlier
    epochs.
    """
    for place, answers in history.latest.items():
        yield from _receding(place, answers)


def _receding(place: Place, answers: list[Latest]) -> Iterator[Violation]:
    ended = sorted(answers, key=lambda one: one.ended_s)
    highest: dict[int, int] = {}
    at = 0
    for asked in sorted(answers, key=lambda one: one.began_s):
        while at < len(ended) and ended[at].ended_s < asked.began_s:
            before = ended[at]
            highest[before.epoch] = max(before.offset, highest.get(before.epoch, 0))
            at += 1
        known = max((offset for epoch, offset in highest.items() if epoch <= asked.epoch), default=0)
        if asked.offset < known:
            text = f"{place.topic}-{place.partition}: {asked.offset} in epoch {asked.epoch}, but {known} before"
            yield Violation(Kind.LATEST_RECEDED, text)


def _of_commits(history: History) -> Iterator[Violation]:
    """A fetched offset is not below an offset that was committed, with an acknowledgement, before the fetch.

    A commit without an acknowledgement may take effect late, so its offset is allowed.
    """
    for group_place, fetches in history.fetched.items():
        commits = history.commits.get(group_place, [])
        yield from _going_back(group_place, sorted(commits, key=lambda one: one.acked_s), fetches)


def _going_back(group_place: tuple[str, Place], commits: list[Commit], fetches: list[Fetched]) -> Iterator[Violation]:
    group, place = group_place
    excused = {commit.offset for commit in commits if math.isinf(commit.acked_s)}
    at, highest = 0, -1
    for fetched in sorted(fetches):
        while at < len(commits) and commits[at].acked_s < fetched.began_s:
            highest = max(highest, commits[at].offset)
            at += 1
        if fetched.offset < highest and fetched.offset not in excused:
            text = (
                f"{group} in {place.topic}-{place.partition}: {highest} was acknowledged, then {fetched.offset} fetched"
            )
            yield Violation(Kind.COMMIT_RECEDED, text)


def _of_share_groups(history: History) -> Iterator[Violation]:
    """Each stored record is delivered, and not again once its acceptance was confirmed.

    A worker may hold a record that the broker has given to another one in the meantime, but not for longer than
    SHARED_SLACK_S, and the last worker has nothing of the others.
    """
    shared = history.shared
    for place in shared.stored:
        for offset in sorted(shared.left(place)):
            yield Violation(Kind.NOT_DELIVERED, _at(place, offset))
    for place, deliveries in shared.delivered.items():
        accepted = shared.accepted.get(place, {})
        for delivery in deliveries:
            accepted_s = accepted.get(delivery.offset, math.inf)
            late_s = delivery.began_s - accepted_s
            if late_s > (0 if delivery.is_last else SHARED_SLACK_S):
                yield Violation(Kind.DELIVERED_AGAIN, f"{_at(place, delivery.offset)}, {late_s:.1f} s later")


def _of_rights(history: History) -> Iterator[Violation]:
    """A node that has applied a DENY enforces it, and stops enforcing it once it has applied the removal."""
    for decision, values in history.rights.wrong():
        text = (
            f"node {decision.node_id} decided {decision.is_it} on {decision.value}; its possible values were {values}"
        )
        yield Violation(Kind.WRONG_RIGHT, text)


def _of_passwords(history: History) -> Iterator[Violation]:
    """A node that has applied a new password accepts no other password."""
    for decision, values in history.passwords.wrong():
        done = "let in" if decision.is_it else "refused"
        yield Violation(Kind.WRONG_PASSWORD, f"node {decision.node_id} {done} {decision.value}, valid were {values}")


def agree(place: Place, replicas: dict[int, bytes]) -> Iterator[str]:
    """Compare the logs of a partition's replicas byte by byte, once all are in sync and no client writes."""
    (first, expected), *others = sorted(replicas.items())
    for node_id, found in others:
        if found != expected:
            at = next((n for n, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
            where = f"from byte {at} on" if at is not None else f"in length: {len(expected)} and {len(found)} bytes"
            yield f"the logs of {place.topic}-{place.partition} on nodes {first} and {node_id} differ {where}"
