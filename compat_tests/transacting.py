"""A program that executes transactional commands with one of Python's clients; `transactors.py` starts it, and can kill
it.

    python -m compat_tests.transacting CLIENT BOOTSTRAP

Each line on stdin is a command, and the program prints the result of each to stdout: "ok ..." or "no NAME ...":

    producer ID TIMEOUT_MS           initialize the id
    begin | flush | commit | abort
    send TOPIC PARTITION VALUE
    offsets GROUP TOPIC PARTITION OFFSET
    burst GROUP TOPIC COUNT          COUNT transactions, each with one record 0, 1, ... and the group's offset 1, 2, ...
    committed GROUP TOPIC PARTITION read ISOLATION TOPIC PARTITIONS PATIENCE_S   until ...END is read from each
    partition, or no record arrives for PATIENCE_S transform ID GROUP SOURCE SINK PARTITION     copy forever, each poll
    in one transaction; print "did N" after each; PARTITION "-" is a member of the group

`Transacting.java` is the same program with Kafka's Java client.
"""

import sys
import time

from compat_tests.clients import CLIENTS
from compat_tests.vocabulary import (
    Client,
    Consumer,
    Isolation,
    Message,
    Received,
    Refused,
    TransactionalProducer,
    closing,
)

END = "END"
GIVEN_UP = 3
POLL_S = 0.2


def say(*words: object) -> None:
    print(*words, flush=True)


class Transacting:
    """The commands. `producer` must be executed before the commands that need a producer."""

    def __init__(self, client: Client, bootstrap: str) -> None:
        self._client = client
        self._bootstrap = bootstrap
        self._producer: TransactionalProducer | None = None

    def run(self, name: str, *words: str) -> str:
        """Execute a line. Returns its result. Raises Refused."""
        if name in ("begin", "flush", "commit", "abort"):
            assert self._producer is not None
            getattr(self._producer, name)()
            return ""
        return str(getattr(self, name)(*words) or "")

    def producer(self, transactional_id: str, timeout_ms: str) -> None:
        self._producer = self._client.transactional(self._bootstrap, transactional_id, timeout_ms=int(timeout_ms))

    def send(self, topic: str, partition: str, value: str) -> None:
        assert self._producer is not None
        self._producer.send(topic, Message(value.encode(), partition=int(partition)))

    def offsets(self, group: str, topic: str, partition: str, offset: str) -> None:
        assert self._producer is not None
        consumer = self._client.consumer(self._bootstrap, group=group)
        with closing(consumer):
            self._producer.send_offsets({(topic, int(partition)): int(offset)}, consumer, group)

    def burst(self, group: str, topic: str, count: str) -> None:
        assert self._producer is not None
        consumer = self._client.consumer(self._bootstrap, group=group)
        with closing(consumer):
            for number in range(int(count)):
                self._producer.begin()
                self._producer.send(topic, Message(str(number).encode(), partition=0))
                self._producer.send_offsets({(topic, 0): number + 1}, consumer, group)
                self._producer.commit()

    def committed(self, group: str, topic: str, partition: str) -> str:
        consumer = self._client.consumer(self._bootstrap, group=group, isolation="read_committed")
        with closing(consumer):
            return str(consumer.committed((topic, int(partition))))

    def read(self, isolation: Isolation, topic: str, partitions: str, patience_s: str) -> str:
        consumer = self._client.consumer(self._bootstrap, isolation=isolation)
        found: list[Received] = []
        ended: set[int] = set()
        heard_s = time.monotonic()
        with closing(consumer):
            consumer.assign({(topic, at): "earliest" for at in range(int(partitions))})
            while len(ended) < int(partitions) and time.monotonic() < heard_s + float(patience_s):
                for one in consumer.poll(POLL_S):
                    heard_s = time.monotonic()
                    found.append(one)
                    if (one.value or b"").endswith(END.encode()):
                        ended.add(one.partition)
        return " ".join(f"{one.partition}:{(one.value or b'').decode()}" for one in found)

    def transform(self, transactional_id: str, group: str, source: str, sink: str, partition: str) -> None:
        self.producer(transactional_id, "60000")
        assert self._producer is not None
        while True:
            instance = None if partition != "-" or transactional_id.endswith("dynamic") else transactional_id
            consumer = self._client.consumer(
                self._bootstrap, group=group, isolation="read_committed", instance=instance
            )
            with closing(consumer):
                try:
                    self._copy(self._producer, consumer, group, source, sink, partition)
                except Refused as refusal:
                    say("met", refusal)
                    self._producer.abort()

    def _copy(
        self,
        producer: TransactionalProducer,
        consumer: Consumer,
        group: str,
        source: str,
        sink: str,
        partition: str,
    ) -> None:
        """Copy until a request is refused: then the consumer has to restart from the committed offsets."""
        if partition == "-":
            consumer.subscribe([source])
        else:
            place = (source, int(partition))
            committed = consumer.committed(place)
            consumer.assign({place: "earliest" if committed is None else committed})
        while True:
            found = consumer.poll(POLL_S)
            if not found:
                continue
            producer.begin()
            for one in found:
                producer.send(sink, Message(b"did-" + (one.value or b""), partition=one.partition))
            producer.send_offsets({(one.topic, one.partition): one.offset + 1 for one in found}, consumer, group)
            producer.commit()
            say("did", len(found))


def main(name: str, bootstrap: str) -> int:
    transacting = Transacting(next(client for client in CLIENTS if client.name == name), bootstrap)
    for line in sys.stdin:
        try:
            say("ok", transacting.run(*line.split()))
        except Refused as refusal:
            say("no", str(refusal).replace("\n", " "))
            if line.startswith("transform"):
                return GIVEN_UP
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
