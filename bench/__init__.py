"""The benchmarks: the same load against kpybroker and Apache Kafka, in turn, on one machine (`python -m bench`)."""
