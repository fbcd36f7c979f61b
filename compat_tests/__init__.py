"""Stock clients, Kafka's tools and Spark against a started broker: kpybroker, or Apache Kafka (`--target kafka`)."""
