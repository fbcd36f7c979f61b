"""The length and hash of strings as in Java. The expected values are from Java 17, with Kafka's own Utils.abs and 50
partitions."""

from __future__ import annotations

import pytest

from kpybroker.metadata.hashing import java_hash, java_length, partition_of

FROM_JAVA = [
    ("", 0, 0, 0),
    ("a", 97, 47, 1),
    ("my-group", -1906497762, 12, 8),
    ("polygenelubricants", -2147483648, 0, 18),  # the one int without an absolute value
    ("café", 3045921, 21, 4),
    ("😀", 1772899, 49, 2),
    ("group-🚀-中文", 842102870, 20, 11),
    ("connect-cluster", 1440343063, 13, 15),
    ("ÿ\uffff", 73440, 40, 2),
    ("spark-kafka-source-2b5c1f0e-1234", -1102503828, 28, 32),
    ("The quick brown fox jumps over the lazy dog", -609428141, 41, 43),
    ("\ud800", 55296, 46, 1),  # half of a surrogate pair, which a Java string may contain
]


@pytest.mark.parametrize(("text", "hashed", "partition", "length"), FROM_JAVA)
def test_results_equal_those_of_java(text: str, hashed: int, partition: int, length: int) -> None:
    assert java_hash(text) == hashed
    assert partition_of(text, 50) == partition
    assert java_length(text) == length
