"""The second half of the golden vectors: unusual requests in the last version, whose responses are not documented.

Every scene creates its own topics. Responses contain the names of the topics; ids are looked up when needed.
"""

from collections.abc import Callable
from typing import Any

from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import (
    create_topics,
    delete_records,
    describe_producers,
    describe_topic_partitions,
    fetch,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)

Ask = Callable[..., Any]
FIRST_MS = 1_700_000_000_000
UNKNOWN_ID = bytes(range(16))


class Edges:
    """Runs after the scenes, on the same broker."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    def all(self) -> None:
        for name, partitions, configs in (
            ("edge-one", 1, {}),
            ("edge-three", 3, {}),
            ("edge-two", 2, {}),
            ("edge-compacted", 1, {"cleanup.policy": "compact"}),
            ("edge-both", 1, {"cleanup.policy": "compact,delete"}),
            ("edge-appended", 1, {"message.timestamp.type": "LogAppendTime"}),
            ("edge-small", 1, {"max.message.bytes": "100"}),
        ):
            self._make(name, partitions, configs)
        self.pages()
        self.appends()
        self.deletions()
        self.sessions()
        self.names()
        self.the_rest()

    def _make(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        settings = [create_topics.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
        topic = create_topics.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=settings
        )
        self.ask("CreateTopics", 7, create_topics.Request(topics=[topic]))
        while True:
            wanted = metadata.Request(topics=[metadata.MetadataRequestTopic(name=name)])
            [told] = self.ask("Metadata", 13, wanted).topics
            if told.error_code == 0 and all(one.leader_id >= 0 for one in told.partitions):
                return

    def pages(self) -> None:
        def page(note: str, *names: str, at: tuple[str, int] | None = None, limit: int = 2000) -> None:
            cursor = None if at is None else describe_topic_partitions.Cursor(topic_name=at[0], partition_index=at[1])
            asked = describe_topic_partitions.Request(
                topics=[describe_topic_partitions.TopicRequest(name=name) for name in names],
                response_partition_limit=limit,
                cursor=cursor,
            )
            self.ask("DescribeTopicPartitions", 0, asked, note)

        three = ("edge-two", "edge-one", "edge-three")
        page("requested out of order", *three)
        page("one asked twice", "edge-one", "edge-one")
        for limit in range(1, 7):
            page(f"at most {limit} partitions", *three, limit=limit)
        page("a cursor inside a topic", *three, at=("edge-three", 1), limit=3)
        page("a cursor behind a topic's last partition", *three, at=("edge-three", 9))
        page("a cursor between topics", *three, at=("edge-p", 1))
        page("a cursor at an unknown topic", *three, at=("edge-zzz", 0))
        page("unknown topics among them", "edge-one", "edge-no", "edge-two", limit=2)
        page("an unknown topic when the page is full", "edge-one", "edge-onf", limit=1)
        page("an invalid name", "a b")
        page("from a cursor on, of all", at=("edge-three", 1))

    def _produce(self, topic: str, note: str, count: int = 1, acks: int = -1, version: int = 12, **facts: Any) -> None:
        keyed = facts.pop("keyed", True)
        records = [(b"key" if keyed else None, b"value %d" % n) for n in range(count)]
        first_ms = facts.pop("timestamp_ms", FIRST_MS)
        batch = facts.pop("batch", None) or bytes(encode_batch(records, timestamp_ms=first_ms, **facts))
        data = produce.PartitionProduceData(index=0, records=batch)
        topics = [produce.TopicProduceData(name=topic, partition_data=[data])]
        self.ask("Produce", version, produce.Request(acks=acks, timeout_ms=9000, topic_data=topics), note)

    def appends(self) -> None:
        self._produce("edge-one", "ten records", 10)
        self._produce("edge-one", "ten more", 10, timestamp_ms=FIRST_MS + 1000)
        self._produce("edge-compacted", "a record with a key, compacted")
        self._produce("edge-compacted", "records without a key, compacted", 2, keyed=False)
        self._produce("edge-both", "a record with a key, compacted and deleted")
        self._produce("edge-small", "more than max.message.bytes", 10)
        self._produce("edge-one", "from the far future", timestamp_ms=FIRST_MS * 100)
        self._produce("edge-one", "a control batch", control=True)
        own = {"producer_id": 7, "producer_epoch": 1}
        self._produce("edge-two", "an unknown producer begins in the middle", base_sequence=5, **own)
        self._produce("edge-two", "it goes on", base_sequence=6, **own)
        old = {"producer_id": 7, "producer_epoch": 0}
        self._produce("edge-two", "a past epoch", base_sequence=7, **old)
        new = {"producer_id": 7, "producer_epoch": 2}
        self._produce("edge-two", "a new epoch that does not begin at 0", base_sequence=7, **new)
        self._produce("edge-two", "a new epoch that begins at 0", base_sequence=0, **new)
        asked = [describe_producers.TopicRequest(name="edge-two", partition_indexes=[0, 1])]
        self.ask(
            "DescribeProducers", 0, describe_producers.Request(topics=asked), "a producer of epoch 2, and no producer"
        )
        asked = [describe_producers.TopicRequest(name="edge-no", partition_indexes=[0])]
        self.ask("DescribeProducers", 0, describe_producers.Request(topics=asked), "of an unknown topic")

    def deletions(self) -> None:
        def cut(topic: str, offset: int, note: str) -> None:
            partition = delete_records.DeleteRecordsPartition(partition_index=0, offset=offset)
            asked = delete_records.DeleteRecordsTopic(name=topic, partitions=[partition])
            self.ask("DeleteRecords", 2, delete_records.Request(topics=[asked], timeout_ms=9000), note)

        cut("edge-one", 12, "inside a batch")
        cut("edge-one", 3, "below the start")
        cut("edge-one", -2, "an invalid negative offset")
        cut("edge-one", 21, "one offset beyond the end")
        cut("edge-compacted", 1, "of a compacted topic")
        cut("edge-both", 1, "of a topic with both cleanup policies")
        cut("edge-both", -1, "up to the high watermark, which is the start")
        cut("edge-no", 0, "of an unknown topic")
        for time_ms in (-1, -2, -3, -4, -5, FIRST_MS, FIRST_MS + 1000, 0):
            partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=time_ms)
            topic = list_offsets.ListOffsetsTopic(name="edge-one", partitions=[partition])
            request = list_offsets.Request(replica_id=-1, topics=[topic], timeout_ms=9000)
            self.ask("ListOffsets", 10, request, f"at {time_ms}, after a deletion")

    def sessions(self) -> None:
        def read(note: str, offset: int = 12, topics: Any = None, of: str = "edge-one", **facts: Any) -> Any:
            wanted = fetch.FetchPartition(
                partition=0,
                fetch_offset=offset,
                partition_max_bytes=facts.pop("partition_max_bytes", 1 << 20),
                current_leader_epoch=facts.pop("epoch", -1),
            )
            topics = [fetch.FetchTopic(topic=of, partitions=[wanted])] if topics is None else topics
            facts = {"max_wait_ms": 10, "max_bytes": 1 << 20, "topics": topics, **facts}
            return self.ask("Fetch", 12, fetch.Request(**facts), note)

        read("inside a batch that is partly deleted")
        read("below the start", 11)
        read("one offset beyond the end", 21)
        read("at the end", 20)
        read("committed records", isolation_level=1)
        read("committed records beyond the end", 99, isolation_level=1)
        read("with a limit of 0 bytes", max_bytes=0, partition_max_bytes=0)
        read("with the current epoch", epoch=0)
        read("with a future epoch", epoch=5)
        read("an empty partition", 0, of="edge-three")
        read("a session without partitions", topics=[], session_epoch=0)
        read("without a session and without partitions", topics=[])
        opened = read("opens a session with an unknown id", session_id=5, session_epoch=0)
        read("replaces a session", session_id=opened.session_id, session_epoch=0)
        read("the replaced session", topics=[], session_id=opened.session_id, session_epoch=1)
        opened = read("opens a session at the end", 20, session_epoch=0)
        session = {"session_id": opened.session_id}
        read("nothing new", topics=[], session_epoch=1, **session)
        read("another partition joins the session", 0, of="edge-three", session_epoch=2, **session)
        unknown = read("an unknown partition joins the session", 0, of="edge-no", session_epoch=3, **session)
        assert unknown.error_code == 0
        read("the unknown partition is reported again", topics=[], session_epoch=4, **session)
        gone = [fetch.ForgottenTopic(topic="edge-no", partitions=[0])]
        read("it is removed from the session", topics=[], forgotten_topics_data=gone, session_epoch=5, **session)
        read("closes the session", topics=[], session_epoch=-1, **session)
        read("continues after closing", topics=[], session_epoch=6, **session)
        read("closes an unknown session, and reads", session_id=3, session_epoch=-1)

    def names(self) -> None:
        def about(note: str, *topics: Any, version: int = 12, **facts: Any) -> None:
            request = metadata.Request(topics=list(topics), allow_auto_topic_creation=False, **facts)
            self.ask("Metadata", version, request, note)

        name = metadata.MetadataRequestTopic
        about("unknown", name(name="edge-no"))
        about("bad names", *(name(name=bad) for bad in ("", ".", "..", "x" * 250, "a/b")))
        about("one asked twice", name(name="edge-one"), name(name="edge-one"))
        about("a zero id", name(name=None, topic_id=bytes(16)))
        about("an internal topic", name(name="__consumer_offsets"))
        about("a missing internal topic", name(name="__transaction_state"))
        about("with operations", name(name="edge-one"), include_topic_authorized_operations=True)
        operations = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
        about("with operations", name(name="edge-one"), name(name="edge-no"), version=10, **operations)

    def the_rest(self) -> None:
        request = init_producer_id.Request(transactional_id="", transaction_timeout_ms=1000)
        self.ask("InitProducerId", 4, request, "an empty transactional id")
        ask = offset_for_leader_epoch.OffsetForLeaderPartition
        for current, epoch in ((-1, 0), (0, 0), (5, 0), (-1, -1), (0, 7)):
            asked = ask(partition=0, current_leader_epoch=current, leader_epoch=epoch)
            topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic="edge-one", partitions=[asked])
            request = offset_for_leader_epoch.Request(replica_id=-1, topics=[topic])
            self.ask("OffsetForLeaderEpoch", 4, request, f"epoch {epoch}, where {current} is thought to be current")
        empty = offset_for_leader_epoch.OffsetForLeaderTopic(
            topic="edge-three", partitions=[ask(partition=0, leader_epoch=0)]
        )
        self.ask("OffsetForLeaderEpoch", 4, offset_for_leader_epoch.Request(replica_id=-1, topics=[empty]), "empty log")
