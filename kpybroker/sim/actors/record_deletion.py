"""DeleteRecords beside normal work (KIP-107): the start goes forward, and what lies above it stays."""

from __future__ import annotations

from functools import partial

from kpybroker.errors import ErrorCode
from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.actors.requests import EARLIEST, offset_by_time, produced
from kpybroker.sim.clients.client import Client, Leader, Refused, Unanswered
from kpybroker.sim.clients.consuming import Consumer, earliest_offset
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import create_topic
from kpybroker.sim.cluster.setup import TopicSetup
from kpybroker.sim.world.history import Place, Reach, Sent
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import delete_records, fetch

PLACE: Place = ("shortened", 0)
TIRES_AFTER = 40
OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)
SEGMENT_BYTES = "900"


class RecordDeletion(Actor):
    """One client writes, and deletes what is oldest."""

    name = "deletion"
    odds = 0.12
    checks = "the topic whose oldest records were deleted"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._deleter: Deleter | None = None

    def preparations(self, founder: Client) -> list[Preparation]:
        topic = TopicSetup(PLACE[0], 1, self.run.setup.replicas, {"internal.segment.bytes": SEGMENT_BYTES})
        return [(topic.name, partial(create_topic, founder, topic))]

    def start(self) -> None:
        client = self.run.client("deleter")
        self._deleter = Deleter(client, pace_s=self.run.pace_s)
        self.run.start(client, self._deleter)

    async def check(self, auditor: Client) -> None:
        if self._deleter is not None:
            await self._deleter.check(auditor)


class Deleter:
    """`acked` has what was acknowledged, by offset."""

    def __init__(self, client: Client, *, pace_s: float) -> None:
        self._client = client
        self._pace_s = pace_s
        self.acked: dict[int, bytes] = {}
        self._number = 0
        self._asked = 0
        """The highest offset up to which records may have been deleted."""
        self._told = Reach()
        """Where leaders have said that the log begins, by their epoch."""

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                await self._write()
                if client.random.random() < 0.3:
                    await self._delete()
                await self._look()
                client.succeeded()
                await client.nap(self._pace_s * (1 + self._number / TIRES_AFTER))
            except (Unanswered, Refused) as failed:
                client.note(f"does not know of {PLACE[0]}: {failed}")
                client.forget_topic(PLACE[0])
                await client.nap(0.5)

    async def _write(self) -> None:
        """Raises Unanswered, Refused."""
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
        """Raises Unanswered, Refused."""
        client = self._client
        leader = await client.leader(*PLACE)
        offset = client.random.choice((*sorted(self.acked)[-20:], 0))
        self._asked = max(self._asked, offset)
        row = delete_records.DeleteRecordsPartition(partition_index=0, offset=offset)
        topic = delete_records.DeleteRecordsTopic(name=PLACE[0], partitions=[row])
        told = await client.ask(
            leader.node_id, "DeleteRecords", delete_records.Request(topics=[topic], timeout_ms=5000)
        )
        answer = told.topics[0].partitions[0]
        if answer.error_code:
            raise Refused(answer.error_code)
        self._begins(leader, answer.low_watermark)
        if answer.low_watermark < offset:
            client.history.breach(f"records below {offset} are deleted, and the log begins at {answer.low_watermark}")
        client.history.count("records deleted")

    def _begins(self, leader: Leader, start: int) -> None:
        """While a leader leads, its log never begins earlier than it has said; nobody deletes more than was asked."""
        if start < self._told.of(leader.epoch):
            self._client.history.breach(
                f"{PLACE[0]} began at {self._told.of(leader.epoch)} in epoch {leader.epoch}, and now at {start}"
            )
        if start > self._asked:
            self._client.history.breach(f"{PLACE[0]} begins at {start}; up to {self._asked} was to be deleted")
        self._told.reached(leader.epoch, start)

    async def _look(self) -> None:
        """Where it begins; below there is nothing. Raises Unanswered, Refused."""
        client = self._client
        leader = await client.leader(*PLACE)
        start, _ = await offset_by_time(client, PLACE, leader, EARLIEST)
        self._begins(leader, start)
        if start:
            await self._look_below(leader, start - 1)

    async def _look_below(self, leader: Leader, offset: int) -> None:
        row = fetch.FetchPartition(
            partition=0, current_leader_epoch=leader.epoch, fetch_offset=offset, partition_max_bytes=1000
        )
        topic = fetch.FetchTopic(topic=PLACE[0], topic_id=leader.topic_id, partitions=[row])
        request = fetch.Request(max_wait_ms=0, min_bytes=1, topics=[topic])
        told = await self._client.ask(leader.node_id, "Fetch", request)
        code = told.error_code or told.responses[0].partitions[0].error_code
        if not code:
            self._client.history.breach(f"{PLACE[0]} begins at {offset + 1}, and {offset} is served")
        elif code != OUT_OF_RANGE:
            raise Refused(code)

    async def check(self, auditor: Client) -> None:
        """All that was acknowledged from the start on is there. Raises Unanswered, Refused."""
        auditor.forget_topic(PLACE[0])
        start = await earliest_offset(auditor, PLACE)
        if start > self._asked:
            auditor.history.breach(f"{PLACE[0]} begins at {start}; up to {self._asked} was to be deleted")
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
