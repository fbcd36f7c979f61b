"""A broker is lost while a producer waits for its acknowledgements: nothing is lost, and nothing is written twice.

The producer must be idempotent and wait for all in-sync replicas. The test keeps the response back, so that the flush
surely waits, and then kills the leader. A producer with other settings may come through by luck, so the test looks at
its requests, too.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import aiokafka
import confluent_kafka
import kafka
import pytest

ORDERS = [str(number).encode() for number in range(20)]


def with_confluent_kafka(bootstrap, topic):
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for order in ORDERS:
        producer.produce(topic, order)
    assert producer.flush(60) == 0


def with_kafka_python(bootstrap, topic):
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap.split(","), enable_idempotence=True)
    futures = [producer.send(topic, order) for order in ORDERS]
    producer.flush(60)
    for future in futures:
        future.get(60)
    producer.close()


def with_aiokafka(bootstrap, topic):
    async def send():
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
            futures = [await producer.send(topic, order) for order in ORDERS]
            await producer.flush()
            await asyncio.gather(*futures)

    asyncio.run(send())


@pytest.mark.kpybroker(brokers=3, in_thread=True)
@pytest.mark.parametrize("send", [with_confluent_kafka, with_kafka_python, with_aiokafka])
def test_each_record_is_written_once(kpybroker_fresh, send):
    topic = kpybroker_fresh.topic("orders", partitions=1)
    kpybroker_fresh.move_leader(topic, 0, to=1)
    with ThreadPoolExecutor(1) as thread, kpybroker_fresh.record() as recording:
        with kpybroker_fresh.fault("Produce", lost_reply=True, topic=topic, node=1) as fault:
            sending = thread.submit(send, kpybroker_fresh.bootstrap, topic)
            fault.wait_hit()
            kpybroker_fresh.kill(1)
        sending.result()
    assert {request.fields["acks"] for request in recording.requests("Produce", topic=topic)} == {-1}
    recording.expect("InitProducerId")
    assert kpybroker_fresh.in_sync(topic) != [1]
    assert [record.value for record in kpybroker_fresh.records(topic)] == ORDERS
