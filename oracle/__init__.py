"""Runs Apache Kafka 4.3.1 as the reference, and kpybroker with the same interface: `kafka.Kafka`,
`broker.KPyBroker`."""
