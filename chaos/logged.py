"""Counts the errors that the nodes of a run have logged, so that runs of different kinds of nodes can be compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from oracle.cluster import ClusterNode
from oracle.takeover import KAFKA, KPYBROKER

ENTRIES = {
    KAFKA: re.compile(r"^\[[\d\-: ,]+\] (?:ERROR|FATAL) (.*(?:\n[a-z][\w.$]+(?:Exception|Error)\b.*)?)", re.MULTILINE),
    KPYBROKER: re.compile(r"^[\d\-: ,]+ (?:ERROR|CRITICAL) (.*)", re.MULTILINE),
}
"""An error in the output of a node, with the first line of an exception of Apache Kafka."""
REQUEST = re.compile(r" RequestHeader\(apiKey=(\w+).*")
VARYING = re.compile(r"(?<![\w-])[\w-]{21}[AQgw](?![\w-])|\d+")
"""Parts in which entries of the same cause differ: ids and numbers."""
LENGTH_MAX = 200


def errors_of(kind: str, output: str) -> Counter[str]:
    """The errors in the output of a node of this kind, without ids and numbers."""
    return Counter(_generalized(entry) for entry in ENTRIES[kind].findall(output))


def logged_errors(nodes: Iterable[ClusterNode]) -> Counter[tuple[str, str]]:
    """(kind, error) -> how often nodes of this kind have logged it."""
    found: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        for error, count in errors_of(node.name, node.output.read_text(errors="replace")).items():
            found[node.name, error] += count
    return found


def _generalized(entry: str) -> str:
    lines = [REQUEST.sub(r" \1", line) for line in entry.splitlines()]
    return VARYING.sub("#", ": ".join(lines))[:LENGTH_MAX]
