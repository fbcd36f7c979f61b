"""Runnable PySpark jobs on a Kafka broker: start with `flights_demo`, the run behind `make demo`."""
