"""Checks compacted topics (tables): a consumer that reads a table to the end has the newest record of each key."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kpybroker.sim.world.history import History, Sent
from kpybroker.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class Forgetting:
    """The ages in seconds from which a table may have deleted records."""

    tombstones_s: float
    """A tombstone of this age may be deleted, and a replica that was down may still have the record that it deleted."""
    markers_s: float = math.inf
    """The marker of an aborted transaction of this age may be deleted, and a replica that was down and did not receive
    the marker may return the records."""
    records_s: float = math.inf
    """Retention may have deleted records of this age."""


def is_settled(sent: Sent) -> bool:
    """Whether the record is acknowledged with an offset and, if it is transactional, committed."""
    is_there = sent.is_acked and sent.offset >= 0
    return is_there and (sent.transaction is None or sent.transaction.is_committed is True)


def is_void(sent: Sent) -> bool:
    """Whether the record belongs to a transaction that will never be committed."""
    transaction = sent.transaction
    return transaction is not None and (transaction.is_committed is False or not transaction.commit_asked)


def check_table(
    history: History,
    place: TopicPartition,
    found: list[tuple[int, bytes]],
    forgetting: Forgetting,
    *,
    end: int,
    since_s: float = math.inf,
) -> None:
    """Compare all committed records that were read below `end` with those that were acknowledged.

    `since_s`: the time at which reading began, for checks during a run. A key is checked only if no client has written
    to it since then.
    """
    where, ledger = f"{place[0]}-{place[1]}", history.ledger(place)
    offsets: dict[bytes, int] = {}
    newest: dict[bytes | None, int] = {}
    for offset, value in found:
        if value in offsets:
            history.breach(f"{value!r} is in {where} twice, at {offsets[value]} and {offset}")
        offsets[value] = offset
        sent = ledger.sent[value]
        newest[sent.key] = offset
        if sent.is_acked and sent.offset not in (-1, offset):
            history.breach(f"{value!r} was acknowledged at {sent.offset} of {where} and is at {offset}")
        if is_void(sent) and sent.at_s >= history.now_s - forgetting.markers_s:
            history.breach(f"{value!r} of {where} was never committed, but was read at {offset}")
    by_key: dict[bytes | None, list[Sent]] = {}
    for sent in ledger.sent.values():
        if not is_void(sent):
            by_key.setdefault(sent.key, []).append(sent)
    for key, sents in by_key.items():
        if since_s < math.inf and not all(is_settled(sent) and sent.at_s < since_s for sent in sents):
            continue
        last = max((sent for sent in sents if is_settled(sent)), key=lambda sent: sent.offset, default=None)
        if last is None or last.offset >= end or newest.get(key, -1) >= last.offset:
            continue
        if not _may_be_forgotten(last, sents, forgetting, history.now_s):
            at = newest.get(key, -1)
            history.breach(
                f"key {key!r}: {last.value!r} was acknowledged at {last.offset} of {where}, but the newest is at {at}"
            )


def _may_be_forgotten(last: Sent, sents: list[Sent], forgetting: Forgetting, now_s: float) -> bool:
    if last.at_s < now_s - forgetting.records_s:
        return True
    return any(
        sent.is_tombstone
        and (sent.offset >= last.offset or not is_settled(sent))
        and sent.at_s < now_s - forgetting.tombstones_s
        for sent in sents
    )
