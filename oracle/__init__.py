"""Apache Kafka 4.3.1 as the second opinion; both brokers behind one interface: `kafka.Kafka`, `broker.KPyBroker`."""
