"""Checks the guarantees at the end of a run: no acknowledged record is lost or duplicated, and replicas agree."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from kpybroker.sim.checks.atomicity import check_transactions, check_transformed
from kpybroker.sim.clients.classic_members import ClassicMembership
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.consuming import Consumer, latest_offset
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.table_clients import read_table
from kpybroker.sim.clients.transforming import TEAM, TWINS
from kpybroker.sim.cluster.setup import OUTPUTS
from kpybroker.sim.laws.tables import check_table, is_settled
from kpybroker.sim.world.history import History, Ledger, Sent
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import Batch, read_records, split

if TYPE_CHECKING:
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.sim.cluster.cluster import SimMachine

Check = Callable[[SimClient], Awaitable[None]]
"""A check that sends requests. Raises Unanswered or Refused where a later attempt may succeed."""
PATIENCE_S = 60.0
READ_BYTES = 1 << 20


async def check_all(run: Run, auditor: SimClient, more: dict[str, Check]) -> None:
    """Read everything, with requests and from the nodes' internal state, run the checks in `more`, and record each
    breach."""
    with run.loop.acting(auditor.owner):
        reading = run.loop.create_task(_read_all(run, auditor, more))
    await reading
    for machine in run.machines:
        machine.storage.warm()
    for first, machine in enumerate(run.machines):
        for other in run.machines[first + 1 :]:
            if machine.node is not None and other.node is not None:
                logs_agree(run.history, machine, other)


async def _patiently(auditor: SimClient, what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Retry `work` until it succeeds. Because all faults are repaired, a failure that lasts is a breach."""
    deadline = auditor.loop.time() + PATIENCE_S
    while True:
        try:
            await work()
            return
        except (Unanswered, Refused) as failed:
            if auditor.loop.time() > deadline:
                auditor.history.breach(f"{what} failed for {PATIENCE_S:.0f} s: {failed}")
                return
            await auditor.refresh_quietly()
            await asyncio.sleep(0.2)


async def _read_all(run: Run, auditor: SimClient, more: dict[str, Check]) -> None:
    for place in run.places:
        ledger = run.history.ledger(place)
        consumer = Consumer(auditor, [place], max_wait_ms=100, pace_s=0.0)
        await _patiently(auditor, f"reading {place[0]}-{place[1]}", consumer.read_to_the_end)
        check_ledger(run, ledger, consumer.got[place])
    for place in run.tables:
        await _patiently(auditor, f"the table {place[0]}-{place[1]}", partial(_read_table, run, auditor, place))
    if run.setup.transactors:
        await _read_committed(run, auditor)
    for group, place in list(run.history.commits):
        await _patiently(auditor, f"the commits of {group}", partial(_fetch, auditor, group, place))

    for what, check in more.items():
        await _patiently(auditor, what, partial(check, auditor))

    async def look() -> None:
        await _check_topics(auditor)

    await _patiently(auditor, "metadata", look)


async def _fetch(auditor: SimClient, group: str, place: TopicPartition) -> None:
    """Fetch a committed offset, which is checked against the history. Raises Unanswered, Refused."""
    await ClassicMembership(auditor, group).fetch(place)


async def _read_committed(run: Run, auditor: SimClient) -> None:
    """Check that every transaction ends, and that committed transactions are visible as a whole."""
    found = {}
    for place in run.places:
        await _patiently(auditor, f"the end of transactions in {place[0]}-{place[1]}", partial(_ends, auditor, place))
        consumer = Consumer(auditor, [place], max_wait_ms=100, pace_s=0.0, committed=True)
        await _patiently(auditor, f"reading committed records of {place[0]}-{place[1]}", consumer.read_to_the_end)
        found[place] = consumer.got[place]
    check_transactions(run.history, found)
    if run.setup.transformers:
        for group in (TWINS, TEAM):
            await _patiently(auditor, f"the commits of {group}", partial(_read_positions, auditor, group, found))


async def _read_table(run: Run, auditor: SimClient, place: TopicPartition) -> None:
    """Read and check a partition of the table. Raises Unanswered, Refused."""
    history, forgetting = run.history, run.setup.forgetting
    assert forgetting is not None, "there is a table"
    await _ends(auditor, place)
    found, end = await read_table(auditor, place)
    check_table(history, place, found, forgetting, end=end)
    ledger, offsets = history.ledger(place), {value: offset for offset, value in found}
    for producer, sents in ledger.by_producer.items():
        if sents[0].idempotent:
            _check_order(run, producer, sents, offsets)
    history.count("records compacted away", sum(is_settled(sent) for sent in ledger.sent.values()) - len(found))


async def _ends(auditor: SimClient, place: TopicPartition) -> None:
    """Check that no transaction is open. Raises Unanswered, Refused; Unanswered also if a transaction is open."""
    end, stable = await latest_offset(auditor, place), await latest_offset(auditor, place, stable=True)
    if stable < end:
        raise Unanswered(f"a transaction is open at {stable}, below {end}")


async def _read_positions(auditor: SimClient, group: str, found: dict[TopicPartition, list[tuple[int, bytes]]]) -> None:
    """Check the outputs of a group up to its committed offsets. Raises Unanswered, Refused."""
    taken = []
    for known, place in list(auditor.history.commits):
        if known == group:
            position = await ClassicMembership(auditor, group).fetch(place)
            taken += [value for offset, value in found[place] if offset < position]
    check_transformed(auditor.history, group, taken, [value for _, value in found[OUTPUTS, 0]])


async def _check_topics(auditor: SimClient) -> None:
    """Check that created topics exist and deleted ones do not. Raises Unanswered."""
    there = {topic.name for topic in (await auditor.refresh()).topics}
    for name, fate in auditor.history.topics.items():
        if fate.must_exist is not None and fate.must_exist != (name in there):
            was = "created" if fate.must_exist else "deleted"
            auditor.history.breach(f"topic {name} was {was}, but {'exists' if name in there else 'does not exist'}")


def check_ledger(run: Run, ledger: Ledger, found: list[tuple[int, bytes]]) -> None:
    """Compare all records of a partition with the responses that producers and consumers received."""
    history, (topic, index) = run.history, ledger.place
    offsets: dict[bytes, int] = {}
    for offset, value in found:
        if value in offsets:
            history.breach(f"{value!r} is twice in {topic}-{index}, at {offsets[value]} and {offset}")
        offsets[value] = offset
    by_offset = dict(found)
    for offset, (_, value) in ledger.seen.items():
        if by_offset.get(offset) != value:
            history.breach(
                f"{value!r} was read at {offset} of {topic}-{index}, which now has {by_offset.get(offset)!r}"
            )
    survives = run.setup.survives
    for sent in ledger.sent.values():
        if not sent.is_acked or sent.acks not in survives:
            continue
        at = offsets.get(sent.value)
        if at is None:
            history.breach(f"{sent.value!r} was acknowledged at {sent.offset} of {topic}-{index} and is lost")
        elif sent.offset not in (-1, at):
            history.breach(f"{sent.value!r} was acknowledged at {sent.offset} of {topic}-{index} and is at {at}")
    for producer, sents in ledger.by_producer.items():
        if sents[0].idempotent:
            _check_order(run, producer, sents, offsets)


def _check_order(run: Run, producer: str, sents: list[Sent], offsets: dict[bytes, int]) -> None:
    last = -1
    for sent in sents:
        at = offsets.get(sent.value)
        if at is not None:
            if at < last:
                run.history.breach(f"{producer} is out of order: {sent.value!r} at {at}, after {last}")
            last = at


def batches_of(partition: Partition, upper: int) -> Iterator[tuple[int, bytes]]:
    """The base offset and the bytes of each batch below `upper`."""
    storage, offset = partition.log, partition.log.start
    while offset < upper:
        found = storage.read(offset, READ_BYTES, upper=upper, min_one=True)
        if found is None:
            storage.segments.holding(offset).index()
            found = storage.read(offset, READ_BYTES, upper=upper, min_one=True)
        if not found:
            return
        for batch in split(memoryview(bytes(found))):
            yield batch.base_offset, bytes(batch.view)
            offset = batch.next_offset


def logs_agree(history: History, one: SimMachine, other: SimMachine) -> None:
    """Check that replicas of a partition have the same batches below the lower of their high watermarks. Replicas of a
    compacted partition must have the same record at each offset that both have."""
    assert one.node is not None
    assert other.node is not None
    for partition in one.node.broker.replication.hosting:
        replica = other.node.broker.replication.hosting.find(partition.topic, partition.index)
        if replica is None or partition.offline is not None or replica.offline is not None:
            continue
        upper = min(partition.log.high_watermark, replica.log.high_watermark)
        lower = max(partition.log.start, replica.log.start)
        of_one: dict[int, object] = {base: batch for base, batch in batches_of(partition, upper) if base >= lower}
        of_other: dict[int, object] = {base: batch for base, batch in batches_of(replica, upper) if base >= lower}
        if of_one != of_other and partition.log.settings.compacted:
            of_one, of_other = _records_of(of_one), _records_of(of_other)
            of_one = {offset: record for offset, record in of_one.items() if offset in of_other}
            of_other = {offset: record for offset, record in of_other.items() if offset in of_one}
        if of_one != of_other:
            differing = min(base for base in of_one.keys() | of_other.keys() if of_one.get(base) != of_other.get(base))
            history.breach(
                f"{one.name} and {other.name} differ at offset {differing} of {partition.topic}-{partition.index}, "
                f"below their high watermarks"
            )


def _records_of(batches: dict[int, Any]) -> dict[int, object]:
    return {record.offset: record for batch in batches.values() for record in read_records(Batch(memoryview(batch)))}
