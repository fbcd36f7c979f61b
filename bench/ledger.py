"""What the clients of a long run wrote and read."""

import threading
from collections import Counter

Partition = tuple[str, int]
WRONG_MAX = 100


class Ledger:
    """Each record has a number, counted by partition. Readers may read records again, but must not skip any.

    Threads share it; each partition has one writer.
    """

    def __init__(self) -> None:
        self.acknowledged: Counter[Partition] = Counter()
        self.read: Counter[Partition] = Counter()
        self.wrong: list[str] = []
        """The first WRONG_MAX records that are missing or should not be there."""
        self._lock = threading.Lock()

    def acknowledge(self, topic: str, partition: int, count: int = 1) -> None:
        """Note that the next `count` records were acknowledged."""
        self.acknowledged[topic, partition] += count

    def found(self, topic: str, partition: int, first: int, last: int) -> None:
        """Note that a reader received the records with these numbers."""
        with self._lock:
            due = self.read[topic, partition]
            if first > due:
                self.complain(f"{topic}-{partition}: records {due} to {first - 1} were skipped")
            self.read[topic, partition] = max(due, last + 1)

    def complain(self, what: str) -> None:
        if len(self.wrong) < WRONG_MAX:
            self.wrong.append(what)

    def unread(self) -> list[str]:
        """The partitions whose readers have not read exactly what was acknowledged."""
        return [
            f"{topic}-{partition}: {count:,} records were acknowledged, {self.read[topic, partition]:,} read"
            for (topic, partition), count in sorted(self.acknowledged.items())
            if count != self.read[topic, partition]
        ]
