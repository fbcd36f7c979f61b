"""Checks transactions at the end of a run: each is atomic, and each input has exactly one output."""

from __future__ import annotations

from collections import Counter

from kpybroker.sim.clients.transforming import input_of
from kpybroker.sim.world.history import History
from kpybroker.topics import TopicPartition


def check_transactions(history: History, found: dict[TopicPartition, list[tuple[int, bytes]]]) -> None:
    """Check that every transaction is atomic. `found` has the records that a read_committed consumer reads, for every
    partition to which every client may write."""
    visible = {value for records in found.values() for _, value in records}
    for transaction in history.transactions:
        if any(sent.place not in found for sent in transaction.records):
            continue  # of an actor with topics of its own
        shown = [sent for sent in transaction.records if sent.value in visible]
        missing = [sent for sent in transaction.records if sent.value not in visible]
        what = f"a transaction of {transaction.producer}"
        if transaction.is_committed and missing:
            history.breach(f"{what} was committed, but a read_committed consumer does not see {missing[0].value!r}")
        elif shown and transaction.is_committed is False:
            history.breach(f"{what} was aborted, but a read_committed consumer sees {shown[0].value!r}")
        elif shown and not transaction.commit_asked:
            history.breach(f"{what} was never committed, but a read_committed consumer sees {shown[0].value!r}")
        elif shown and missing:
            history.breach(f"{what} is visible in part: {shown[0].value!r} is, {missing[0].value!r} is not")
    for place, records in found.items():
        by_offset = dict(records)
        for offset, value in history.ledger(place).seen_committed.items():
            if by_offset.get(offset) != value:
                history.breach(
                    f"{value!r} was read as committed at {offset} of {place[0]}-{place[1]}, but no longer is"
                )


def check_transformed(history: History, group: str, taken: list[bytes], written: list[bytes]) -> None:
    """Check that each committed record below the group's committed offset has one committed output, and that no other
    record has one."""
    outputs = Counter(found for value in written if (found := input_of(group, value)) is not None)
    for value in taken:
        if outputs[value] != 1:
            history.breach(f"{group} consumed {value!r}, and wrote it {outputs[value]} times")
    for value in outputs.keys() - set(taken):
        history.breach(f"{group} wrote {value!r}, but did not commit its offset")
