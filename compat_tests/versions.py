"""`python -m compat_tests.versions` prints README.md's table of the tested software, in Markdown."""

import importlib.metadata
import re
import subprocess
import sys
from collections import Counter

import confluent_kafka

from compat_tests.clients import CLIENTS, FULL
from oracle.jars import KAFKA_VERSION

OF_JAVA = (
    "test_java_",
    "test_dump_log",
    "test_settings",
    "test_the_tools_",
    "test_transactions_tool",
    "test_streams",
    "test_connect",
    "[java]",
)
JAVA = f"Kafka's command-line tools and Java clients {KAFKA_VERSION}"


def counted() -> Counter[str]:
    """The number of tests per client, as pytest collects them."""
    command = [sys.executable, "-m", "pytest", "compat_tests", "--collect-only", "-p", "no:cacheprovider"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    counts: Counter[str] = Counter()
    for test in re.findall(r"^compat_tests/\S+::.*$", told, re.MULTILINE):
        if "test_troubleshooting_page" not in test:  # it tests error messages, not supported features
            counts[_client_of(test)] += 1
    return counts


def _client_of(test: str) -> str:
    if "test_spark" in test or "test_example" in test:
        return "PySpark"
    if any(name in test for name in OF_JAVA):
        return JAVA
    for client in CLIENTS:
        if f"[{client.name}" in test or f"Test{client.name.title().replace('-', '')}" in test:
            return client.name
    return CLIENTS[0].name


def main() -> None:
    counts = counted()
    rows = [("client", "version", "combinations", "tests"), ("---", "---", "---", "---:")]
    for client in CLIENTS:
        version = client.version
        if client.name == "confluent-kafka":
            version += f" (librdkafka {confluent_kafka.libversion()[0]})"
        rows.append((client.name, version, "all" if client.name in FULL else "pairwise", str(counts[client.name])))
    rows.append((JAVA.removesuffix(f" {KAFKA_VERSION}"), KAFKA_VERSION, "", str(counts[JAVA])))
    rows.append(("PySpark with its Kafka connector", importlib.metadata.version("pyspark"), "", str(counts["PySpark"])))
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
