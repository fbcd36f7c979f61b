"""The laws of scheduled records: each appears exactly once, not before its time, and in the order of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kpybroker.sim.world.history import Sent


def missing(sent: Mapping[bytes, Sent], found: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """The values of records that must appear and have not appeared yet."""
    values = {value for _, value in found}
    return [value for value, each in sent.items() if value not in values and _must_appear(each)]


def _must_appear(sent: Sent) -> bool:
    if sent.transaction is not None:
        return sent.transaction.is_committed is True
    return sent.is_acked


def breaches(
    sent: Mapping[bytes, Sent], found: Sequence[tuple[int, bytes]], seen_ms: Mapping[bytes, int], *, is_timely: bool
) -> Iterator[str]:
    """The breaches of the laws in one partition.

    - sent: the records that were sent, by value.
    - found: the offsets and values that a read_committed consumer reads.
    - seen_ms: when a consumer read a record for the first time, by the clock of the clients.
    - is_timely: the clocks of brokers and clients agree.
    """
    for value, times in Counter(value for _, value in found).items():
        if times > 1:
            yield f"{value!r} appears {times} times"
        each = sent.get(value)
        if each is not None and each.transaction is not None and each.transaction.is_committed is False:
            yield f"{value!r} appears, although its transaction was aborted"
    if not is_timely:
        return
    for value, at_ms in seen_ms.items():
        each = sent.get(value)
        if each is not None and each.due_ms is not None and at_ms < each.due_ms:
            yield f"{value!r} was read {each.due_ms - at_ms} ms before its time"
    yield from _out_of_order(sent, found)


def _out_of_order(sent: Mapping[bytes, Sent], found: Sequence[tuple[int, bytes]]) -> Iterator[str]:
    """Of two records that were acknowledged before the later of them was due, the earlier one is delivered first.

    A record whose time has passed when it arrives is appended at once, like one without a time.
    """
    delivered = [
        (each, each.due_ms, each.acked_ms)
        for _, value in found
        if (each := sent.get(value)) is not None
        and each.transaction is None
        and each.due_ms is not None
        and each.acked_ms is not None
    ]
    for at, (first, first_due_ms, first_acked_ms) in enumerate(delivered):
        for later, due_ms, acked_ms in delivered[at + 1 :]:
            if due_ms < first_due_ms and max(acked_ms, first_acked_ms) < first_due_ms:
                yield f"{later.value!r} is due {first_due_ms - due_ms} ms before {first.value!r}, but follows it"
