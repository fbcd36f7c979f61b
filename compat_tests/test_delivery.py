"""Tests of delivery guarantees under failures: a broker is killed under load, or a consumer stops between two steps."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from compat_tests.clients import each_client
from compat_tests.conftest import MakeTopic, Running
from compat_tests.test_consume import poll_until
from compat_tests.vocabulary import Acks, Client, Message, Placed, Received, Refused, closing, send_all

PARTITIONS = 3
KILLS = 2
KEEPING: tuple[Acks, ...] = ("idempotent", "all", "1")
PATIENCE_S = 90.0


@dataclass
class Load:
    """A producer that numbers its records per partition, and a ledger of the acknowledged ones."""

    client: Client
    bootstrap: str
    topic: str
    acks: Acks
    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)
    """(partition, number) -> offset"""
    refused: list[str] = field(default_factory=list)
    sent: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> "Load":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop sending, and wait until each record is acknowledged or has failed."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join(PATIENCE_S + 30)
        assert not self._thread.is_alive(), "the producer does not end"

    def _run(self) -> None:
        producer = self.client.producer(self.bootstrap, acks=self.acks, patience_s=PATIENCE_S)
        with closing(producer):
            while not self._stop.is_set():
                for _ in range(20):
                    partition, number = self.sent % PARTITIONS, self.sent // PARTITIONS
                    message = Message(f"{number}".encode(), partition=partition)
                    producer.send(self.topic, message, self._ledger(partition, number))
                    self.sent += 1
                self._stop.wait(0.01)
            try:
                producer.flush(PATIENCE_S)
            except Refused as refusal:
                self.refused.append(str(refusal))

    def _ledger(self, partition: int, number: int) -> Callable[[Placed | Refused], None]:
        def done(outcome: Placed | Refused) -> None:
            if isinstance(outcome, Placed):
                self.acknowledged[(partition, number)] = outcome.offset
            else:
                self.refused.append(str(outcome))

        return done


def read_everything(client: Client, broker: Running, topic: str) -> list[Received]:
    consumer = client.consumer(broker.bootstrap)
    with closing(consumer):
        consumer.assign({(topic, at): "earliest" for at in range(PARTITIONS)})
        received: list[Received] = []
        silent_since = time.monotonic()
        while time.monotonic() < silent_since + 3:
            found = consumer.poll(0.5)
            received += found
            if found:
                silent_since = time.monotonic()
    return received


@each_client()
def test_a_broker_killed_under_load_keeps_acknowledged_records(
    client: Client, broker: Running, make_topic: MakeTopic
) -> None:
    loads = {acks: Load(client, broker.bootstrap, make_topic(PARTITIONS), acks).start() for acks in KEEPING}
    for _ in range(KILLS):
        before = {acks: len(load.acknowledged) for acks, load in loads.items()}
        deadline = time.monotonic() + 60
        while any(len(load.acknowledged) < before[acks] + 300 for acks, load in loads.items()):
            assert time.monotonic() < deadline, (
                f"the load makes no progress: {[load.refused[-1:] for load in loads.values()]}"
            )
            time.sleep(0.02)
        broker.kill9()
        broker.restart()
    for load in loads.values():
        load.stop()
    for acks, load in loads.items():
        received = read_everything(client, broker, load.topic)
        copies = Counter((one.partition, int(one.value or b"-1")) for one in received)
        assert load.acknowledged.keys() <= copies.keys(), f"acknowledged with acks={acks} and lost"
        if acks == "idempotent":
            assert load.refused == []
            assert set(copies.values()) == {1}, "an idempotent producer's record is stored twice"
            for partition in range(PARTITIONS):
                numbers = [int(one.value or b"-1") for one in received if one.partition == partition]
                assert numbers == sorted(numbers), "an idempotent producer's records are out of order"
            at = {(one.partition, int(one.value or b"-1")): one.offset for one in received}
            told = {key: offset for key, offset in load.acknowledged.items() if offset >= 0}
            assert told.items() <= at.items()


@each_client()
def test_at_most_once(client: Client, broker: Running, make_topic: MakeTopic, unique: Callable[[], str]) -> None:
    """With acks=0 and a commit before processing, the records that a consumer was processing when it stopped are not
    read again."""
    topic, group = make_topic(PARTITIONS), unique()
    processed: list[Received] = []
    dropped: list[Received] = []
    numbers = iter(range(1_000_000))

    def send(count: int) -> None:
        producer = client.producer(broker.bootstrap, acks="0")
        with closing(producer):
            messages = [Message(f"{next(numbers)}".encode(), partition=at % PARTITIONS) for at in range(count)]
            send_all(producer, topic, messages)

    for life in range(4):
        send(200)
        if life == 1:
            broker.kill9()
            broker.restart()
            send(200)
        consumer = client.consumer(broker.bootstrap, group=group)
        with closing(consumer):
            consumer.subscribe([topic])
            found = poll_until(consumer, lambda found: len(found) > 0)
            consumer.commit()
            processed += found
            send(200)
            found = poll_until(consumer, lambda found: len(found) > 0)
            consumer.commit()
            dropped += found  # and the consumer stops before it has processed them
    assert processed
    assert dropped
    assert max(Counter(one.value for one in processed).values()) == 1
    assert not {one.value for one in dropped} & {one.value for one in processed}


@each_client()
def test_at_least_once(client: Client, broker: Running, make_topic: MakeTopic, unique: Callable[[], str]) -> None:
    """With acks=all and a commit after processing, records that were not committed when the consumer stopped are read
    again."""
    topic, group = make_topic(PARTITIONS), unique()
    producer = client.producer(broker.bootstrap)
    messages = [Message(f"{n}".encode(), partition=n % PARTITIONS) for n in range(3000)]
    with closing(producer):
        send_all(producer, topic, messages)
    processed: list[bytes | None] = []
    again: set[bytes | None] = set()
    while len(set(processed)) < len(messages):
        consumer = client.consumer(broker.bootstrap, group=group)
        with closing(consumer):
            consumer.subscribe([topic])
            for _ in range(5):
                found = poll_until(consumer, lambda found: len(found) > 0, timeout_s=20)
                assert found, f"no more records, after {len(set(processed))} of {len(messages)}"
                processed += [one.value for one in found]
                consumer.commit()
                if len(set(processed)) == len(messages):
                    break
            found = [] if again else consumer.poll(5)
            processed += [one.value for one in found]
            again |= {one.value for one in found}  # and the consumer stops before it commits
    copies = Counter(processed)
    assert set(copies) == {message.value for message in messages}
    assert {value for value, count in copies.items() if count > 1} <= again
