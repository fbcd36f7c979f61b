"""Loads on share groups (KIP-932): many consumers of the same partitions, acknowledgements, redelivery, many
partitions, memory.

The consumers are raw clients with the settings of Kafka's Java consumer. Each has one fetch in flight, of at most 500
records, which acknowledges the records of the previous fetch.
"""

import base64
import contextlib
import selectors
import time
import uuid
from collections.abc import Iterator

from bench.control import create_topic, delete_topic, end_offsets, fresh_name
from bench.joining import find_coordinator_of
from bench.librdkafka import undisturbed
from bench.measure import Better, Case, LoadError, Measure
from bench.percentile import percentile
from bench.produce_raw import first_reply, produce_frame
from bench.raw import HEADER_BYTES, Connection, frame
from bench.records import batch
from bench.target import Target
from kpybroker.config.resource_type import ResourceType
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.rpc import (
    incremental_alter_configs,
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
)

HEARTBEAT, FETCH, ACKNOWLEDGE, ALTER_CONFIGS = 76, 78, 79, 44
VERSION = 2
PARTITIONS = 4
IN_BATCH, RECORD_BYTES = 15, 1024
"""A full batch of a producer with default settings."""
MAX_RECORDS = 500
ACCEPT = 1
PATIENCE_S = 60.0
Where = tuple[bytes, int]
Acquired = dict[Where, list[tuple[int, int]]]
"""First and last offsets, by topic id and partition."""


class Consumer:
    """A member of a share group, with its own connection."""

    def __init__(self, target: Target, group: str, topic: str) -> None:
        self.connection = Connection(target)
        self.socket = self.connection.socket
        self.member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self.group, self.topic = group, topic
        self.assigned: list[Where] = []
        self.session_epoch = 0
        self._member_epoch = 0
        self._buffer = bytearray()

    def beat(self) -> None:
        """Send a heartbeat, which joins the group or returns the current assignment."""
        request = share_group_heartbeat.Request(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self._member_epoch,
            subscribed_topic_names=None if self._member_epoch else [self.topic],
        )
        answer = self.connection.ask(HEARTBEAT, 1, request, share_group_heartbeat.Response)
        _check(answer.error_code, "ShareGroupHeartbeat")
        self._member_epoch = answer.member_epoch
        if answer.assignment is not None:
            rows = answer.assignment.topic_partitions
            self.assigned = [(bytes(row.topic_id), partition) for row in rows for partition in row.partitions]

    def leave(self) -> None:
        """Close the connection, on which a fetch may be in flight, and leave the group on another connection."""
        self.socket.close()
        with Connection(self.connection.target) as self.connection:
            self._member_epoch = -1
            self.beat()

    def fetch_frame(self, acquired: Acquired, max_records: int = MAX_RECORDS, wait_ms: int = 500) -> bytes:
        """A fetch that accepts the acquired records."""
        rows: dict[bytes, list[share_fetch.FetchPartition]] = {}
        for topic, partition in dict.fromkeys((*(self.assigned if not self.session_epoch else ()), *acquired)):
            acks = [
                share_fetch.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[ACCEPT])
                for first, last in acquired.get((topic, partition), ())
            ]
            row = share_fetch.FetchPartition(partition_index=partition, acknowledgement_batches=acks)
            rows.setdefault(topic, []).append(row)
        request = share_fetch.Request(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self.session_epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=50 << 20,
            max_records=max_records,
            batch_size=max_records,
            topics=[share_fetch.FetchTopic(topic_id=topic, partitions=row) for topic, row in rows.items()],
        )
        self.session_epoch += 1
        return frame(FETCH, VERSION, request)

    def receive(self) -> Acquired | None:
        """Wait for the whole response, and return the acquired records."""
        part = self.socket.recv(1 << 20)
        if not part:
            raise LoadError(f"{self.connection.target.name} closed the connection of a consumer")
        self._buffer += part
        if len(self._buffer) < 4 or len(self._buffer) < 4 + int.from_bytes(self._buffer[:4], "big"):
            return None
        reply, self._buffer = bytes(self._buffer), bytearray()
        return read_fetch(reply)

    def fetch(self, acquired: Acquired, max_records: int = MAX_RECORDS, wait_ms: int = 500) -> Acquired:
        """Fetch, and wait for the response."""
        self.socket.sendall(self.fetch_frame(acquired, max_records, wait_ms))
        return read_fetch(self.connection.reply())

    def acknowledge(self, acquired: Acquired) -> None:
        """Accept records without a fetch."""
        rows: dict[bytes, list[share_acknowledge.AcknowledgePartition]] = {}
        for (topic, partition), ranges in acquired.items():
            acks = [
                share_acknowledge.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[ACCEPT])
                for first, last in ranges
            ]
            row = share_acknowledge.AcknowledgePartition(partition_index=partition, acknowledgement_batches=acks)
            rows.setdefault(topic, []).append(row)
        request = share_acknowledge.Request(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self.session_epoch,
            topics=[share_acknowledge.AcknowledgeTopic(topic_id=topic, partitions=row) for topic, row in rows.items()],
        )
        self.session_epoch += 1
        answer = self.connection.ask(ACKNOWLEDGE, VERSION, request, share_acknowledge.Response)
        _check(answer.error_code, "ShareAcknowledge")
        for topic in answer.responses:
            for row in topic.partitions:
                _check(row.error_code, "ShareAcknowledge of a partition")


def read_fetch(reply: bytes) -> Acquired:
    """The records that a ShareFetch acquired. Raises LoadError if the fetch or an acknowledgement in it was refused."""
    answer = parse(share_fetch.Response, VERSION, reply, HEADER_BYTES)
    _check(answer.error_code, "ShareFetch")
    acquired: Acquired = {}
    for topic in answer.responses:
        for row in topic.partitions:
            _check(row.error_code, "ShareFetch of a partition")
            _check(row.acknowledge_error_code, "acknowledgement")
            ranges = [(each.first_offset, each.last_offset) for each in row.acquired_records]
            if ranges:
                acquired[bytes(topic.topic_id), row.partition_index] = ranges
    return acquired


def _check(code: int, what: str) -> None:
    if code:
        raise LoadError(f"{what} was refused with error {code}")


def count(acquired: Acquired) -> int:
    return sum(last - first + 1 for ranges in acquired.values() for first, last in ranges)


def fill(target: Target, topic: str, partitions: int, batches: int, records: int = IN_BATCH) -> int:
    """Produce this many batches to each partition. Returns the number of records."""
    data = batch(records, RECORD_BYTES)
    with Connection(target) as connection:
        for partition in range(partitions):
            request = produce_frame(topic, partition, data)
            first_reply(connection, topic, request)
            for _ in range(batches - 1):
                connection.socket.sendall(request)
                connection.reply()
    return sum(end_offsets(target, topic, partitions))


def begin_at_earliest(target: Target, group: str) -> None:
    """Configure the group to begin at the earliest offset; by default it begins at the end of the log at its first
    fetch."""
    config = incremental_alter_configs.AlterableConfig(
        name="share.auto.offset.reset", config_operation=0, value="earliest"
    )
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=ResourceType.GROUP, resource_name=group, configs=[config]
    )
    with Connection(target) as connection:
        answer = connection.ask(
            ALTER_CONFIGS,
            1,
            incremental_alter_configs.Request(resources=[resource]),
            incremental_alter_configs.Response,
        )
    _check(answer.responses[0].error_code, "IncrementalAlterConfigs")


@contextlib.contextmanager
def consumers(target: Target, topic: str, how_many: int, partitions: int = PARTITIONS) -> Iterator[list[Consumer]]:
    """The members of a new group, when each has an assignment and together they have every partition."""
    group = fresh_name("shares")
    begin_at_earliest(target, group)
    find_coordinator_of(target, group)
    members = [Consumer(target, group, topic) for _ in range(how_many)]
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for member in members:
            member.beat()
        together = {place for member in members for place in member.assigned}
        if len(together) == partitions and all(member.assigned for member in members):
            break
        if time.monotonic() > deadline:
            raise LoadError(f"{target.name}: the members of a share group have no assignment")
        time.sleep(0.2)
    yield members
    for member in members:
        with contextlib.suppress(OSError, LoadError):
            member.leave()


def consume(members: list[Consumer], due: int) -> None:
    """Acquire and accept this many records, each once."""
    got = 0
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member.socket, selectors.EVENT_READ, member)
            member.socket.sendall(member.fetch_frame({}))
        left: dict[Consumer, Acquired] = {}
        deadline = time.monotonic() + PATIENCE_S
        while got < due:
            if time.monotonic() > deadline:
                raise LoadError(f"{got} of {due} records were acquired")
            for key, _ in selector.select(1.0):
                member = key.data
                acquired = member.receive()
                if acquired is None:
                    continue
                got += count(acquired)
                if got < due:
                    member.socket.sendall(member.fetch_frame(acquired))
                else:
                    left[member] = acquired
                    break
    for member, acquired in left.items():
        member.acknowledge(acquired)
    if got != due:
        raise LoadError(f"{got} records were acquired, but only {due} exist")


class Throughput(Case):
    """Read a topic of 1 KiB records through a share group."""

    family = "shares"
    batches = 1700

    def __init__(self, how_many: int, rate: tuple[float, float]) -> None:
        self.how_many = how_many
        self.name = f"shares-{how_many}"
        who = "consumer" if how_many == 1 else "consumers"
        self.measures = (
            Measure(f"{self.name}.rate", f"share group, 1 KiB, {how_many} {who}", "k/s", Better.HIGHER, *rate),
            Measure(f"{self.name}.cpu", "… broker CPU", "s/million", Better.LOWER, 1.0, 0.7),
        )

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        create_topic(target, topic, PARTITIONS)
        due = fill(target, topic, PARTITIONS, self.batches)
        with consumers(target, topic, self.how_many) as members:
            cpu, began = target.cpu(), time.perf_counter()
            consume(members, due)
            elapsed_s, used = time.perf_counter() - began, target.cpu() - cpu
        delete_topic(target, topic)
        rate, cost = self.measures
        return {rate.key: due / elapsed_s / 1e3, cost.key: used.per(due / 1e6)}


class AcknowledgeLatency(Case):
    """Send one ShareAcknowledge at a time, each for one record."""

    family = "shares"
    name = "shares-acknowledge"
    acknowledged = 2000
    measures = (
        Measure(
            "shares-acknowledge.p50", "share group: acknowledgement of one record, p50", "ms", Better.LOWER, 1, 0.7
        ),
        Measure("shares-acknowledge.p99", "… p99", "ms", Better.LOWER, 1, 0.7),
    )

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        create_topic(target, topic, 1)
        fill(target, topic, 1, self.acknowledged // IN_BATCH + 1)
        waits_s: list[float] = []
        with consumers(target, topic, 1, 1) as [member], undisturbed():
            while len(waits_s) < self.acknowledged:
                for where, ranges in member.fetch({}).items():
                    for first, last in ranges:
                        for offset in range(first, last + 1):
                            began = time.perf_counter()
                            member.acknowledge({where: [(offset, offset)]})
                            waits_s.append(time.perf_counter() - began)
        delete_topic(target, topic)
        p50, p99 = (percentile(waits_s, percent) * 1e3 for percent in (50, 99))
        return {self.measures[0].key: p50, self.measures[1].key: p99}


class Redelivery(Case):
    """Disconnects a consumer that has acquired records. Measures the time until another consumer acquires them."""

    family = "shares"
    name = "shares-redelivery"
    measures = (
        Measure(
            "shares-redelivery",
            "share group: a consumer dies: time until its records are delivered again",
            "ms",
            Better.LOWER,
            1,
            0.7,
        ),
    )

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        create_topic(target, topic, 1)
        due = fill(target, topic, 1, 4)
        with consumers(target, topic, 2, 1) as [first, second]:
            held = first.fetch({})
            if count(held) != due:
                raise LoadError(f"{target.name}: {count(held)} of {due} records were acquired")
            second.fetch({}, wait_ms=0)
            second.socket.sendall(second.fetch_frame({}, wait_ms=30_000))
            began = time.perf_counter()
            first.socket.close()
            again = read_fetch(second.connection.reply())
            elapsed_s = time.perf_counter() - began
            if not count(again):
                raise LoadError(f"{target.name}: no record was delivered again")
            second.acknowledge(again)
        delete_topic(target, topic)
        return {self.name: elapsed_s * 1e3}


class ManyPartitions(Case):
    """A thousand share partitions with a batch each. Measures the time in which one consumer accepts all records."""

    family = "shares"
    name = "shares-partitions"
    partitions = 1000
    runs = 3
    warm_up_slices = 2
    measures = (
        Measure(
            "shares-partitions",
            "1,000 share partitions: time until every record is accepted",
            "ms",
            Better.LOWER,
            1,
            0.7,
        ),
        Measure("shares-partitions.cpu", "… broker CPU", "ms", Better.LOWER, 1, 0.7),
    )

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        create_topic(target, topic, self.partitions)
        due = fill(target, topic, self.partitions, 1)
        with consumers(target, topic, 1, self.partitions) as members:
            cpu, began = target.cpu(), time.perf_counter()
            consume(members, due)
            elapsed_s, used = time.perf_counter() - began, target.cpu() - cpu
        delete_topic(target, topic)
        return {self.measures[0].key: elapsed_s * 1e3, self.measures[1].key: used.per(1e-3)}


class InFlight(Case):
    """Memory of records that are acquired one by one and not acknowledged."""

    family = "shares"
    name = "shares-memory"
    only = "kpybroker"
    partitions = 20
    held = 2000
    """The default limit of a share partition."""
    runs = 1
    warm_up_slices = 0
    repeats = 0
    measures = (
        Measure("shares-memory", "memory of a record in flight", "bytes", Better.LOWER, 1000, 500, absolute=True),
    )

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        create_topic(target, topic, self.partitions)
        fill(target, topic, self.partitions, self.held // IN_BATCH + 1)
        with consumers(target, topic, 1, self.partitions) as [member]:
            member.fetch({}, 1)
            before, got = target.resident_bytes(), 0
            while found := count(member.fetch({}, 1, wait_ms=50)):
                got += found
            used = target.resident_bytes() - before
        delete_topic(target, topic)
        return {self.name: used / got}


def cases() -> list[Case]:
    return [
        Throughput(1, (1.0, 1.2)),
        Throughput(10, (1.0, 1.2)),
        Throughput(100, (1.0, 1.5)),
        AcknowledgeLatency(),
        Redelivery(),
        ManyPartitions(),
        InFlight(),
    ]
