"""Consumers: they read partitions from the start, ask for latest offsets, and believe nothing they cannot check."""

from __future__ import annotations

from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.sim.client import Client, Refused, Unanswered
from kpybroker.sim.history import Place
from kpybroker.wire.batch import read_records, split
from kpybroker.wire.rpc import fetch, list_offsets

LATEST = -1
EARLIEST = -2
OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)


async def latest_offset(client: Client, place: Place) -> int:
    """The latest offset of a partition. Raises Unanswered, Refused."""
    name, index = place
    node_id, _ = await client.leader(name, index)
    row = list_offsets.ListOffsetsPartition(partition_index=index, timestamp=LATEST)
    topic = list_offsets.ListOffsetsTopic(name=name, partitions=[row])
    known_end = client.history.ledger(place).known_end
    told = await client.ask(node_id, "ListOffsets", list_offsets.Request(replica_id=-1, topics=[topic]))
    answer = told.topics[0].partitions[0]
    if answer.error_code:
        raise Refused(answer.error_code)
    client.history.latest(place, known_end, answer.offset)
    return int(answer.offset)


class Consumer:
    """Follows some partitions, one fetch after the other."""

    def __init__(self, client: Client, places: list[Place], *, max_wait_ms: int, pace_s: float) -> None:
        self._client = client
        self._positions = dict.fromkeys(places, 0)
        self.got: dict[Place, list[tuple[int, bytes]]] = {place: [] for place in places}
        """Offsets and values, as they were read."""
        self._max_wait_ms = max_wait_ms
        self._pace_s = pace_s

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                for place in self._positions:
                    if client.random.random() < 0.3:
                        await latest_offset(client, place)
                    await self.fetch(place)
                client.succeeded()
                await client.nap(self._pace_s)
            except (Unanswered, Refused) as failed:
                client.note(f"cannot read: {failed}")
                for name, _ in self._positions:
                    client.forget_topic(name)
                await client.nap(0.5)

    async def read_to_the_end(self) -> None:
        """Read every partition up to what is latest now. Raises Unanswered, Refused."""
        for place in self._positions:
            end = await latest_offset(self._client, place)
            while self._positions[place] < end:
                await self.fetch(place)

    async def fetch(self, place: Place) -> None:
        """One Fetch of one partition; the position moves behind what came. Raises Unanswered, Refused."""
        client, (name, index) = self._client, place
        position = self._positions[place]
        node_id, topic_id = await client.leader(name, index)
        row = fetch.FetchPartition(
            partition=index,
            fetch_offset=position,
            partition_max_bytes=client.random.choice((1, 300, 100_000)),
        )
        topic = fetch.FetchTopic(topic=name, topic_id=topic_id, partitions=[row])
        request: Any = fetch.Request(max_wait_ms=self._max_wait_ms, min_bytes=1, topics=[topic])
        told = await client.ask(node_id, "Fetch", request)
        if told.error_code:
            raise Refused(told.error_code)
        if not told.responses:
            return
        answer = told.responses[0].partitions[0]
        if answer.error_code == OUT_OF_RANGE:
            client.history.breach(f"{client.name} read {name}-{index} up to {position}, which is now out of range")
        if answer.error_code:
            raise Refused(answer.error_code)
        self._take(place, position, answer)

    def _take(self, place: Place, position: int, answer: Any) -> None:
        """Records must follow each other without a gap, from the position on."""
        client = self._client
        chunks = answer.records
        data = b"" if chunks is None else b"".join(chunks) if isinstance(chunks, list) else bytes(chunks)
        try:
            batches = split(memoryview(data)) if data else []
        except KafkaError as unreadable:
            client.history.breach(f"{client.name} got what is no batch from {position} of {place} on: {unreadable}")
            raise Refused(unreadable.code) from unreadable
        for batch in batches:
            if not batch.crc_ok():
                client.history.breach(f"{client.name} got a batch with a wrong CRC at {batch.base_offset} of {place}")
                raise Refused(int(ErrorCode.CORRUPT_MESSAGE))
            if not batch.is_control:
                for record in read_records(batch):
                    if record.offset < position:
                        continue
                    if record.offset != position:
                        client.history.breach(f"{client.name} read {place} from {position} and got {record.offset}")
                    client.history.read(client.name, place, record.offset, batch.leader_epoch, record.value or b"")
                    self.got[place].append((record.offset, record.value or b""))
                    position = record.offset + 1
            position = max(position, batch.next_offset)
        if data and position > answer.high_watermark:
            client.history.breach(
                f"{client.name} got {place} up to {position}, above its high watermark {answer.high_watermark}"
            )
        self._positions[place] = position
