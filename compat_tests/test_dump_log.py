"""Tests that Kafka's DumpLogSegments accepts every file of a data directory with a varied history."""

from collections.abc import Callable

import pytest

from compat_tests.clients import CLIENTS
from compat_tests.conftest import MakeTopic, Running
from compat_tests.dumps import METADATA, dump, dump_everything
from compat_tests.test_consume import poll_until
from compat_tests.test_produce import shapes
from compat_tests.vocabulary import ACKS, CODECS, Message, closing, send_all


@pytest.mark.parametrize("end", ["stop", "kill9"])
def test_every_file_is_valid_for_kafka(
    end: str, broker: Running, make_topic: MakeTopic, unique: Callable[[], str]
) -> None:
    rolling = make_topic(segment_bytes=1 << 20)
    varied = make_topic(partitions=2)
    deleted_from = make_topic()
    messages = [Message(b"x" * 500, f"{n}".encode(), partition=0) for n in range(8000)]
    for client in CLIENTS:
        for at, codec in enumerate(CODECS):
            producer = client.producer(broker.bootstrap, codec=codec, acks=ACKS[(at + 1) % len(ACKS)])
            with closing(producer):
                send_all(producer, varied, [message for message in shapes(1000) if client.can_send(message)])
                if client is CLIENTS[0]:
                    send_all(producer, rolling, messages)
                    send_all(producer, deleted_from, messages[:100])
        consumer = client.consumer(broker.bootstrap, group=unique())
        with closing(consumer):
            consumer.subscribe([varied])
            poll_until(consumer, lambda found: len(found) > 50)
            consumer.commit()
    broker.tool("kafka-configs", "--alter", "--topic", varied, "--add-config", "retention.ms=99999999").ok()
    if end == "stop":
        broker.stop()
    else:
        broker.kill9()
        broker.restart()
        broker.stop()
    try:
        kinds = dump_everything(broker.data)
        assert kinds[".log"] >= 10
        assert min(kinds[".index"], kinds[".timeindex"], kinds[".snapshot"], kinds[".checkpoint"]) >= 1
        committed = [log for log in broker.data.glob("__consumer_offsets-*/*.log") if log.stat().st_size]
        offsets = [dump([log], "--offsets-decoder") for log in committed]
        assert any(varied in text for text in offsets)
        [metadata] = [dump(sorted((broker.data / METADATA).glob("*.log")), "--cluster-metadata-decoder")]
        assert varied in metadata
        assert "TOPIC_RECORD" in metadata
    finally:
        broker.restart()
