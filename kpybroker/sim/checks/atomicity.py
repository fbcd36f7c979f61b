"""What must be true of transactions in the end: all of one or nothing, and each input has one output."""

from __future__ import annotations

from collections import Counter

from kpybroker.sim.clients.transforming import input_of
from kpybroker.sim.world.history import History, Place


def check_transactions(history: History, found: dict[Place, list[tuple[int, bytes]]]) -> None:
    """`found` is what a reader of committed transactions is shown of every partition."""
    visible = {value for records in found.values() for _, value in records}
    for transaction in history.transactions:
        shown = [sent for sent in transaction.records if sent.value in visible]
        missing = [sent for sent in transaction.records if sent.value not in visible]
        what = f"a transaction of {transaction.producer}"
        if transaction.is_committed and missing:
            history.breach(f"{what} was committed, and {missing[0].value!r} is not shown")
        elif shown and transaction.is_committed is False:
            history.breach(f"{what} was aborted, and {shown[0].value!r} is shown")
        elif shown and not transaction.commit_asked:
            history.breach(f"{what} was never committed, and {shown[0].value!r} is shown")
        elif shown and missing:
            history.breach(f"of {what} {shown[0].value!r} is shown, and {missing[0].value!r} is not")
    for place, records in found.items():
        by_offset = dict(records)
        for offset, value in history.ledger(place).seen_committed.items():
            if by_offset.get(offset) != value:
                history.breach(f"{value!r} was shown as committed at {offset} of {place[0]}-{place[1]}, and is not now")


def check_transformed(history: History, group: str, taken: list[bytes], written: list[bytes]) -> None:
    """Each committed record below what its readers have committed has one committed output, and nothing else has."""
    made = Counter(found for value in written if (found := input_of(group, value)) is not None)
    for value in taken:
        if made[value] != 1:
            history.breach(f"{group} has read {value!r}, and has written it {made[value]} times")
    for value in made.keys() - set(taken):
        history.breach(f"{group} has written {value!r}, and has not committed that it has read it")
