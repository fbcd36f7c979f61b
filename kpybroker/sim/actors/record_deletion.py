"""DeleteRecords during normal operation (KIP-107): the log start never goes back, and records above it stay."""

from __future__ import annotations

from functools import partial

from kpybroker.errors import ErrorCode
from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.actors.requests import EARLIEST, offset_by_time, produced
from kpybroker.sim.clients.client import KnownLeader, Refused, SimClient, Unanswered
from kpybroker.sim.clients.consuming import Consumer, earliest_offset
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import create_topic
from kpybroker.sim.cluster.setup import TopicSetup
from kpybroker.sim.world.history import HighestOffsets, Sent
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import delete_records, fetch

PLACE: TopicPartition = ("shortened", 0)
SLOWS_AFTER = 40
OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)
SEGMENT_BYTES = "900"


class RecordDeletion(Actor):
    """Runs one client that writes records and deletes the oldest ones."""

    name = "deletion"
    odds = 0.11
    checks = "the topic whose oldest records were deleted"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._deleter: Deleter | None = None

    def preparations(self, founder: SimClient) -> list[Preparation]:
        topic = TopicSetup(PLACE[0], 1, self.run.setup.replicas, {"internal.segment.bytes": SEGMENT_BYTES})
        return [(topic.name, partial(create_topic, founder, topic))]

    def start(self) -> None:
        client = self.run.client("deleter")
        self._deleter = Deleter(client, pace_s=self.run.pace_s)
        self.run.start(client, self._deleter)

    async def check(self, auditor: SimClient) -> None:
        if self._deleter is not None:
            await self._deleter.check(auditor)


class Deleter:
    """Writes, deletes and checks. `acked` has the acknowledged records by offset."""

    def __init__(self, client: SimClient, *, pace_s: float) -> None:
        self._client = client
        self._pace_s = pace_s
        self.acked: dict[int, bytes] = {}
        self._number = 0
        self._asked = 0
        """The highest offset of any DeleteRecords request."""
        self._told = HighestOffsets()
        """The highest log start that leaders have returned, by leader epoch."""

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                await self._write()
                if client.random.random() < 0.3:
                    await self._delete()
                await self._look()
                client.succeeded()
                await client.nap(self._pace_s * (1 + self._number / SLOWS_AFTER))
            except (Unanswered, Refused) as failed:
                client.note(f"cannot use {PLACE[0]}: {failed}")
                client.forget_topic(PLACE[0])
                await client.nap(0.5)

    async def _write(self) -> None:
        """Write a batch. Raises Unanswered, Refused."""
        client = self._client
        values = []
        for _ in range(client.random.choice((1, 3))):
            values.append(b"shortened/%d" % self._number + b"." * client.random.choice((0, 100)))
            self._number += 1
            client.history.sends(client.name, Sent(values[-1], PLACE, -1, False))
        batch = bytes(encode_batch([(None, value) for value in values], timestamp_ms=client.wall_ms()))
        base, _, _ = await produced(client, PLACE, batch)
        self.acked.update((base + number, value) for number, value in enumerate(values))

    async def _delete(self) -> None:
        """Delete the oldest records. Raises Unanswered, Refused."""
        client = self._client
        leader = await client.leader(*PLACE)
        offset = client.random.choice((*sorted(self.acked)[-20:], 0))
        self._asked = max(self._asked, offset)
        row = delete_records.DeleteRecordsPartition(partition_index=0, offset=offset)
        topic = delete_records.DeleteRecordsTopic(name=PLACE[0], partitions=[row])
        response = await client.ask(
            leader.node_id, "DeleteRecords", delete_records.Request(topics=[topic], timeout_ms=5000)
        )
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise Refused(answer.error_code)
        self._begins(leader, answer.low_watermark)
        if answer.low_watermark < offset:
            client.history.breach(f"records below {offset} are deleted, but the log begins at {answer.low_watermark}")
        client.history.count("records deleted")

    def _begins(self, leader: KnownLeader, start: int) -> None:
        """Check that the log start never goes back within a leader epoch, and is never above the requested offset."""
        if start < self._told.of(leader.epoch):
            self._client.history.breach(
                f"{PLACE[0]} began at {self._told.of(leader.epoch)} in epoch {leader.epoch}, but now at {start}"
            )
        if start > self._asked:
            self._client.history.breach(f"{PLACE[0]} begins at {start}, but records were deleted to {self._asked}")
        self._told.reached(leader.epoch, start)

    async def _look(self) -> None:
        """Check the log start, and that no records below it are served. Raises Unanswered, Refused."""
        client = self._client
        leader = await client.leader(*PLACE)
        start, _ = await offset_by_time(client, PLACE, leader, EARLIEST)
        self._begins(leader, start)
        if start:
            await self._look_below(leader, start - 1)

    async def _look_below(self, leader: KnownLeader, offset: int) -> None:
        row = fetch.FetchPartition(
            partition=0, current_leader_epoch=leader.epoch, fetch_offset=offset, partition_max_bytes=1000
        )
        topic = fetch.FetchTopic(topic=PLACE[0], topic_id=leader.topic_id, partitions=[row])
        request = fetch.Request(max_wait_ms=0, min_bytes=1, topics=[topic])
        response = await self._client.ask(leader.node_id, "Fetch", request)
        code = response.error_code or response.responses[0].partitions[0].error_code
        if not code:
            self._client.history.breach(f"{PLACE[0]} begins at {offset + 1}, but {offset} is served")
        elif code != OUT_OF_RANGE:
            raise Refused(code)

    async def check(self, auditor: SimClient) -> None:
        """Check that all acknowledged records from the log start onwards exist. Raises Unanswered, Refused."""
        auditor.forget_topic(PLACE[0])
        start = await earliest_offset(auditor, PLACE)
        if start > self._asked:
            auditor.history.breach(f"{PLACE[0]} begins at {start}, but records were deleted to {self._asked}")
        consumer = Consumer(auditor, [PLACE], max_wait_ms=100, pace_s=0.0)
        consumer.positions[PLACE] = start
        await consumer.read_to_the_end()
        found = dict(consumer.got[PLACE])
        for offset, value in self.acked.items():
            if offset >= start and found.get(offset) != value:
                auditor.history.breach(
                    f"{value!r} was acknowledged at {offset} of {PLACE[0]}, which begins at {start}: "
                    f"there is {found.get(offset)!r}"
                )
