"""Example PySpark jobs that use a Kafka broker. Start with `flights_demo`, which `make demo` runs."""
