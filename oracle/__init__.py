"""Apache Kafka 4.3.1 as the reference. Both brokers have the same interface: `kafka.Kafka`, `broker.KPyBroker`."""
