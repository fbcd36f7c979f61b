"""Tests of stock clients, Kafka's tools and Spark against a running broker: kpybroker, or Apache Kafka (`--target
kafka`)."""
