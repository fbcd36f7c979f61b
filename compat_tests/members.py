"""Members of a consumer group, each in its own thread, that record what they observe."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from compat_tests.vocabulary import Client, Place, Received, Refused, Strategy

JOIN_TIMEOUT_S = 60.0


@dataclass
class Member:
    """Consumes and commits until `leave`."""

    client: Client
    bootstrap: str
    group: str
    topic: str
    strategy: Strategy = "eager"
    instance: str | None = None
    seen: list[Received] = field(default_factory=list)
    partitions: set[Place] = field(default_factory=set)
    assignments: int = 0
    failure: Exception | None = None
    _leave: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> "Member":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def leave(self) -> None:
        """Close the consumer and wait for its thread. (A static member stays in the group nevertheless.)"""
        self._leave.set()
        assert self._thread is not None
        self._thread.join(JOIN_TIMEOUT_S)
        assert not self._thread.is_alive(), "the consumer does not close"
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            consumer = self.client.consumer(
                self.bootstrap, group=self.group, strategy=self.strategy, instance=self.instance
            )
            consumer.subscribe([self.topic])
            try:
                while not self._leave.is_set():
                    found = consumer.poll(0.1)
                    self.seen += found
                    self.partitions = consumer.assignment()
                    self.assignments = consumer.assignments
                    if found:
                        self._commit(consumer.commit)
            finally:
                consumer.close()
        except Exception as failure:  # noqa: BLE001 - handed to the test's thread by leave()
            self.failure = failure

    def _commit(self, commit: Callable[[], None]) -> None:
        """Commit. During a rebalance this may fail: then the next owner of the partition reads the records again."""
        try:
            commit()
        except Refused:
            return
