"""Benchmarks: the same loads against kpybroker and Apache Kafka in turn, on one machine (`python -m bench`)."""
