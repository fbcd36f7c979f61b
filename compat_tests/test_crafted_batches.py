"""Tests that acknowledged records can be read: a batch with a valid CRC is refused if its records contradict the
header."""

from itertools import product

from confluent_kafka.admin import AdminClient

from compat_tests.conftest import MakeTopic
from compat_tests.crafted import NOW_MS, Crafted, crafted, linked_lz4, records
from kpybroker.errors import ErrorCode
from kpybroker.wire.records.compression import Codec, compress
from kpybroker.wire.rpc import list_offsets, produce
from oracle.asking import Conversation

INVALID, UNKNOWN = ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_SERVER_ERROR
TAKEN = {"nothing is wrong", "a header name that is no UTF-8", "a newest timestamp that is too late"}
CRAFTED = crafted()
LENGTHS = ("a record too short", "a record too long", "a negative length")
OFFSETS = ("the same offset twice", "offsets with a gap")
TAKEN_BY_KAFKA = {(what, codec) for what in LENGTHS for codec in Codec if codec} | {
    (what, Codec.NONE) for what in OFFSETS
}
"""Batches that Apache Kafka accepts: in compressed batches it does not check the lengths of records, and in
uncompressed ones it does not check offsets."""
MAX_TIMESTAMP = -3


def put(conversation: Conversation, topic: str, batch: bytes) -> int:
    data = produce.PartitionProduceData(index=0, records=batch)
    told = produce.TopicProduceData(name=topic, partition_data=[data])
    request = produce.Request(acks=1, timeout_ms=5000, topic_data=[told])
    return int(
        conversation.ask("Produce", 12, request, produce.Response).responses[0].partition_responses[0].error_code
    )


def newest(conversation: Conversation, topic: str) -> tuple[int, int]:
    wanted = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=MAX_TIMESTAMP, current_leader_epoch=-1)
    asked = list_offsets.ListOffsetsTopic(name=topic, partitions=[wanted])
    request = list_offsets.Request(replica_id=-1, topics=[asked])
    told = conversation.ask("ListOffsets", 8, request, list_offsets.Response).topics[0].partitions[0]
    return told.offset, told.timestamp


def test_records_that_no_consumer_can_read_are_refused(
    conversation: Conversation, make_topic: MakeTopic, target_name: str, admin: AdminClient
) -> None:
    """Neither error code makes a client send the same bytes again. The topic is deleted, because DumpLogSegments, which
    another test runs, cannot read what Apache Kafka accepts."""
    topic = make_topic()
    for (what, each), codec in product(CRAFTED.items(), Codec):
        code = put(conversation, topic, each.batch(codec))
        is_taken = what in TAKEN or (target_name == "kafka" and (what, codec) in TAKEN_BY_KAFKA)
        assert code in ((0,) if is_taken else (INVALID, UNKNOWN)), (what, codec.name)
    admin.delete_topics([topic])[topic].result(30)


def test_records_that_cannot_be_decompressed_are_refused(conversation: Conversation, make_topic: MakeTopic) -> None:
    topic = make_topic()
    for codec in [codec for codec in Codec if codec]:
        cut = Crafted(b"").batch(codec, packed=compress(codec, records())[:-1])
        assert put(conversation, topic, cut) in (UNKNOWN, INVALID)
        noise = Crafted(b"").batch(codec, packed=bytes(range(50, 100)))
        assert put(conversation, topic, noise) == UNKNOWN


def test_lz4_that_java_cannot_read_is_refused(conversation: Conversation, make_topic: MakeTopic) -> None:
    """LZ4 with linked blocks is refused, and LZ4 with a second frame, which Java's consumer does not read."""
    topic = make_topic()
    assert put(conversation, topic, Crafted(b"").batch(Codec.LZ4, packed=linked_lz4())) == UNKNOWN
    two_frames = compress(Codec.LZ4, records()[:9]) + compress(Codec.LZ4, records()[9:])
    assert put(conversation, topic, Crafted(b"").batch(Codec.LZ4, packed=two_frames)) == INVALID


def test_two_gzip_members_are_accepted(conversation: Conversation, make_topic: MakeTopic) -> None:
    two_members = compress(Codec.GZIP, records()[:9]) + compress(Codec.GZIP, records()[9:])
    assert put(conversation, make_topic(), Crafted(b"").batch(Codec.GZIP, packed=two_members)) == 0


def test_the_newest_timestamp_is_that_of_a_record(conversation: Conversation, make_topic: MakeTopic) -> None:
    for codec in Codec:
        topic = make_topic()
        assert put(conversation, topic, CRAFTED["a newest timestamp that is too late"].batch(codec)) == 0
        assert newest(conversation, topic) == (0, NOW_MS)
