"""Two thousand topics: the time until they are created and each has accepted a record, and the time to list them."""

import time
from statistics import median

from bench.control import fresh_name
from bench.measure import Better, Case, LoadError, Measure
from bench.raw import Connection, frame
from bench.records import batch
from bench.target import Target
from kpybroker.wire.rpc import create_topics, delete_topics, metadata, produce

COUNT = 2000
AT_ONCE = 200
ASKS = 20
RETRY_S = 0.02
SETTLE_S = 3.0
"""Files of deleted topics are removed in the background, which must not slow down the next slice."""


class Topics(Case):
    """One CreateTopics of 2,000 topics, then a record to each, retried while the broker does not know the topic."""

    family = "topics"
    name = "topics"
    warm_up_slices = 1
    measures = (
        Measure("topics.created", "2,000 topics created and usable", "ms", Better.LOWER, 0.15, 0.10),
        Measure("topics.acknowledged", "… time until the response to CreateTopics", "ms", Better.LOWER),
        Measure("topics.cpu", "… broker CPU", "s", Better.LOWER),
        Measure("topics.metadata", "Metadata of 2,000 topics", "ms", Better.LOWER, 0.5, 0.15),
    )

    def slice(self, target: Target) -> dict[str, float]:
        prefix = fresh_name("t")
        names = [f"{prefix}-{number}" for number in range(COUNT)]
        with Connection(target) as connection:
            cpu, began = target.cpu(), time.perf_counter()
            _create(connection, names)
            acknowledged_s = time.perf_counter() - began
            _use(connection, names)
            created_s, used = time.perf_counter() - began, target.cpu() - cpu
            metadata_s = _metadata(connection, names)
            _delete(connection, names)
            time.sleep(SETTLE_S)
        figures = (created_s * 1e3, acknowledged_s * 1e3, used.per(1), metadata_s * 1e3)
        return dict(zip((measure.key for measure in self.measures), figures, strict=True))


def _create(connection: Connection, names: list[str]) -> None:
    """Create the topics with one replica, and without a delay of file deletion."""
    config = create_topics.CreatableTopicConfig(name="file.delete.delay.ms", value="100")
    topics = [
        create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=[config])
        for name in names
    ]
    request = create_topics.Request(topics=topics, timeout_ms=60_000)
    answer = connection.ask(19, 7, request, create_topics.Response)
    refused = [topic for topic in answer.topics if topic.error_code]
    if refused or len(answer.topics) != len(names):
        raise LoadError(f"{connection.target.name} created {len(answer.topics)} topics; refused: {refused[:1]}")


def _use(connection: Connection, names: list[str]) -> None:
    """Return when every topic has accepted a record. Of the topics that refused the record, only the first is
    retried."""
    records = batch(1, 100)
    deadline = time.monotonic() + 120
    for begin in range(0, len(names), AT_ONCE):
        waiting = _refused(connection, names[begin : begin + AT_ONCE], records)
        while waiting:
            if time.monotonic() > deadline:
                raise LoadError(f"{connection.target.name} does not serve {waiting[0]} after 120 s")
            time.sleep(RETRY_S)
            waiting = _refused(connection, waiting, records)


def _refused(connection: Connection, names: list[str], records: bytes) -> list[str]:
    """Send a record to each topic. Returns the topics that refused it."""
    topics = [
        produce.TopicProduceData(name=name, partition_data=[produce.PartitionProduceData(index=0, records=records)])
        for name in names
    ]
    request = produce.Request(acks=1, timeout_ms=30_000, topic_data=topics)
    answer = connection.ask(0, 12, request, produce.Response)
    return [topic.name for topic in answer.responses if topic.partition_responses[0].error_code]


def _metadata(connection: Connection, names: list[str]) -> float:
    """Seconds from a Metadata request for these topics to the whole undecoded reply; the median of several."""
    asked = metadata.Request(topics=[metadata.MetadataRequestTopic(name=name) for name in names])
    answer = connection.ask(3, 12, asked, metadata.Response)
    if len(answer.topics) != len(names) or any(topic.error_code for topic in answer.topics):
        raise LoadError(f"{connection.target.name} shows {len(answer.topics)} topics, or errors")
    asked_all = connection.ask(3, 12, metadata.Request(topics=None), metadata.Response)
    if len(asked_all.topics) < len(names):
        raise LoadError(f"{connection.target.name} shows {len(asked_all.topics)} topics in a request for all topics")
    everything = frame(3, 12, metadata.Request(topics=None))
    taken_s = []
    for _ in range(ASKS):
        began = time.perf_counter()
        connection.socket.sendall(everything)
        connection.reply()
        taken_s.append(time.perf_counter() - began)
    return median(taken_s)


def _delete(connection: Connection, names: list[str]) -> None:
    topics = [delete_topics.DeleteTopicState(name=name) for name in names]
    answer = connection.ask(20, 6, delete_topics.Request(topics=topics, timeout_ms=60_000), delete_topics.Response)
    refused = [topic for topic in answer.responses if topic.error_code]
    if refused:
        raise LoadError(f"{connection.target.name} did not delete {refused[0]}")


def cases() -> list[Case]:
    return [Topics()]
