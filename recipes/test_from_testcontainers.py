"""Coming from testcontainers: `Broker` stands where `KafkaContainer` stood, without Docker and in milliseconds.

    from testcontainers.kafka import KafkaContainer     ->  from kpybroker.testing import Broker
    KafkaContainer().with_kraft()                       ->  Broker()
    .with_env("KAFKA_NUM_PARTITIONS", "3")              ->  Broker({"num.partitions": 3})
    .get_bootstrap_server(), .start(), .stop(), `with`  ->  the same

This is a test class of unittest, as such suites often have. `stop` keeps the data for another `start`; `close` removes
it.
"""

import asyncio
import unittest

import aiokafka
import confluent_kafka
import kafka

from kpybroker.testing import Broker


class OrdersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kafka = Broker({"num.partitions": 3}).start()
        cls.addClassCleanup(cls.kafka.close)

    def test_confluent_kafka(self):
        producer = confluent_kafka.Producer({"bootstrap.servers": self.kafka.get_bootstrap_server()})
        producer.produce("from-confluent", b"paid")
        assert producer.flush(10) == 0
        assert len(producer.list_topics(timeout=10).topics["from-confluent"].partitions) == 3

    def test_kafka_python(self):
        producer = kafka.KafkaProducer(bootstrap_servers=self.kafka.get_bootstrap_server())
        assert producer.send("from-kafka-python", b"paid").get(10).offset == 0
        assert len(producer.partitions_for("from-kafka-python")) == 3
        producer.close()

    def test_aiokafka(self):
        async def send():
            async with aiokafka.AIOKafkaProducer(bootstrap_servers=self.kafka.get_bootstrap_server()) as producer:
                sent = await producer.send_and_wait("from-aiokafka", b"paid")
                return sent.offset, len(await producer.partitions_for("from-aiokafka"))

        assert asyncio.run(send()) == (0, 3)

    def test_the_data_survives_a_stop(self):
        with Broker() as broker:
            broker.send("orders", "paid")
            broker.stop()
            broker.start()
            assert [record.value for record in broker.records("orders")] == [b"paid"]
