"""Runnable PySpark jobs with a Kafka broker: start with `flights_demo`, which `make demo` runs."""
