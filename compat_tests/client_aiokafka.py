"""The adapter for aiokafka. Its event loop runs in a separate thread; the adapter's methods block until a call has
finished."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Coroutine, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from compat_tests.vocabulary import (
    LARGEST_BYTES,
    Acks,
    Codec,
    Done,
    Isolation,
    Message,
    Place,
    Placed,
    Received,
    Refused,
    Strategy,
)

T = TypeVar("T")
IN_FLIGHT = 2000
CALL_TIMEOUT_S = 60.0


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="aiokafka").start()
    return loop


def wait(work: Coroutine[Any, Any, T], timeout_s: float | None = 60) -> T:
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result(timeout_s)
    except KafkaError as refusal:
        raise Refused(repr(refusal)) from refusal


class AiokafkaProducer:
    """aiokafka's producer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        async def start() -> Any:
            producer = aiokafka.AIOKafkaProducer(**settings)
            await producer.start()
            return producer

        self._producer = wait(start())
        self._pending = threading.Semaphore(IN_FLIGHT)
        self._queue: asyncio.Queue[tuple[str, Message, Done] | None] = asyncio.Queue()
        self._pump = asyncio.run_coroutine_threadsafe(self._send_in_order(), _loop())

    def send(self, topic: str, message: Message, done: Done) -> None:
        self._pending.acquire()
        _loop().call_soon_threadsafe(self._queue.put_nowait, (topic, message, done))

    async def _send_in_order(self) -> None:
        """Send from a single task, because two tasks that wait for space in a batch could overtake one another."""
        while (job := await self._queue.get()) is not None:
            topic, message, done = job
            try:
                future = await self._producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    partition=message.partition,
                    timestamp_ms=message.timestamp_ms,
                    headers=list(message.headers),
                )
            except KafkaError as refusal:
                done(Refused(repr(refusal)))
                self._pending.release()
                continue
            future.add_done_callback(functools.partial(self._report, message, done))

    def _report(self, message: Message, done: Done, sent: "asyncio.Future[Any]") -> None:
        if sent.cancelled():
            done(Refused("cancelled"))
        elif (error := sent.exception()) is not None:
            done(Refused(repr(error)))
        else:
            # without a response (acks=0) the offset is unknown
            at = sent.result()
            done(Placed(message.partition or 0, -1) if at is None else Placed(at.partition, at.offset))
        self._pending.release()

    def flush(self, timeout_s: float) -> None:
        for taken in range(IN_FLIGHT):
            if not self._pending.acquire(timeout=timeout_s):
                self._pending.release(taken) if taken else None
                raise Refused(f"{IN_FLIGHT - taken} messages without a response after {timeout_s} s")
        self._pending.release(IN_FLIGHT)

    def close(self) -> None:
        async def stop() -> None:
            self._queue.put_nowait(None)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._producer.stop(), 5)

        wait(stop())


class _Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, consumer: "AiokafkaConsumer") -> None:
        self._consumer = consumer

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._consumer.assignments += 1


class AiokafkaConsumer:
    """aiokafka's consumer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        async def start() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(**settings)
            await consumer.start()
            return consumer

        self._consumer = wait(start())
        self.assignments = 0

    async def _now(self, name: str, *args: Any) -> Any:
        """Call a synchronous method of aiokafka, in the thread of its event loop like all others."""
        return getattr(self._consumer, name)(*args)

    def subscribe(self, topics: Sequence[str]) -> None:
        async def subscribe() -> None:
            self._consumer.subscribe(list(topics), listener=_Listener(self))

        wait(subscribe())

    def assign(self, starts: Mapping[Place, int | Literal["earliest", "latest"]]) -> None:
        async def assign() -> None:
            self._consumer.assign([TopicPartition(*place) for place in starts])
            for place, start in starts.items():
                if start == "earliest":
                    await self._consumer.seek_to_beginning(TopicPartition(*place))
                elif start == "latest":
                    await self._consumer.seek_to_end(TopicPartition(*place))
                else:
                    self._consumer.seek(TopicPartition(*place), start)

        wait(assign())

    def assignment(self) -> set[Place]:
        return {(at.topic, at.partition) for at in wait(self._now("assignment"))}

    def poll(self, timeout_s: float) -> list[Received]:
        found = wait(self._consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=500))
        return [
            Received(
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                timestamp_ms=record.timestamp,
                key=record.key,
                value=record.value,
                headers=tuple((name, value) for name, value in record.headers),
            )
            for records in found.values()
            for record in records
        ]

    def commit(self) -> None:
        wait(self._consumer.commit())

    def committed(self, place: Place) -> int | None:
        found = wait(self._consumer.committed(TopicPartition(*place)))
        return None if found is None or found < 0 else int(found)

    def position(self, place: Place) -> int:
        return int(wait(self._consumer.position(TopicPartition(*place))))

    def seek(self, place: Place, offset: int) -> None:
        wait(self._now("seek", TopicPartition(*place), offset))

    def pause(self, place: Place) -> None:
        wait(self._now("pause", TopicPartition(*place)))

    def resume(self, place: Place) -> None:
        wait(self._now("resume", TopicPartition(*place)))

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        found = wait(self._consumer.offsets_for_times({TopicPartition(*place): timestamp_ms}))
        at = found[TopicPartition(*place)]
        return None if at is None else int(at.offset)

    def close(self) -> None:
        wait(self._consumer.stop())


class AiokafkaTransactional:
    """aiokafka's transactional producer. It sends only the group's name, so the broker does not check the
    membership."""

    def __init__(self, settings: dict[str, Any]) -> None:
        async def start() -> Any:
            producer = aiokafka.AIOKafkaProducer(**settings)
            await producer.start()
            return producer

        self._producer = self._wait(start())
        self._sent: list[asyncio.Future[Any]] = []

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, _loop())
        try:
            return future.result(CALL_TIMEOUT_S)
        except KafkaError as refusal:
            raise Refused(f"{type(refusal).__name__} {refusal!r}") from refusal

    def begin(self) -> None:
        self._sent = []
        self._wait(self._producer.begin_transaction())

    def send(self, topic: str, message: Message) -> None:
        record = {
            "value": message.value,
            "key": message.key,
            "partition": message.partition,
            "headers": list(message.headers),
        }
        self._sent.append(self._wait(self._producer.send(topic, **record)))

    def flush(self) -> None:
        async def outcomes() -> None:
            await asyncio.gather(*self._sent)

        self._wait(outcomes())

    def send_offsets(self, offsets: Mapping[Place, int], consumer: "AiokafkaConsumer", group: str) -> None:
        places = {TopicPartition(*place): offset for place, offset in offsets.items()}
        self._wait(self._producer.send_offsets_to_transaction(places, group))

    def commit(self) -> None:
        self.flush()  # once the producer is fenced, its own commit fails with an AssertionError
        self._wait(self._producer.commit_transaction())

    def abort(self) -> None:
        self._wait(self._producer.abort_transaction())

    def close(self) -> None:
        async def stop() -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._producer.stop(), 5)

        self._wait(stop())


class Aiokafka:
    """aiokafka is based on asyncio, uses older versions of the APIs, and has no cooperative assignor."""

    name = "aiokafka"
    version = str(aiokafka.__version__)
    strategies: tuple[Strategy, ...] = ("eager",)

    def producer(
        self,
        bootstrap: str,
        *,
        codec: Codec = "none",
        acks: Acks = "all",
        linger_ms: int = 5,
        patience_s: float = 60,
        batch_bytes: int = 1 << 20,
    ) -> AiokafkaProducer:
        return AiokafkaProducer(
            {
                "bootstrap_servers": bootstrap,
                "compression_type": None if codec == "none" else codec,
                "acks": "all" if acks in ("all", "idempotent") else int(acks),
                "enable_idempotence": acks == "idempotent",
                "linger_ms": linger_ms,
                "max_batch_size": batch_bytes,
                "max_request_size": LARGEST_BYTES,
                "request_timeout_ms": int(patience_s * 1000),
            }
        )

    def can_send(self, message: Message) -> bool:
        return message.key is not None or message.value is not None

    def consumer(
        self,
        bootstrap: str,
        *,
        group: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        strategy: Strategy = "eager",
        instance: str | None = None,
        isolation: Isolation = "read_uncommitted",
    ) -> AiokafkaConsumer:
        assert strategy in self.strategies
        return AiokafkaConsumer(
            {
                "bootstrap_servers": bootstrap,
                "group_id": group,
                "group_instance_id": instance,
                "auto_offset_reset": start,
                "enable_auto_commit": False,
                "isolation_level": isolation,
                "partition_assignment_strategy": [RangePartitionAssignor],
                "session_timeout_ms": 6000,
                "heartbeat_interval_ms": 300,
                "max_partition_fetch_bytes": LARGEST_BYTES,
                "fetch_max_wait_ms": 100,
                "metadata_max_age_ms": 2000,
            }
        )

    def transactional(
        self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> AiokafkaTransactional:
        return AiokafkaTransactional(
            {
                "bootstrap_servers": bootstrap,
                "transactional_id": transactional_id,
                "transaction_timeout_ms": timeout_ms,
                "request_timeout_ms": 10_000,
            }
        )
