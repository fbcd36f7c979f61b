"""The log of a coordinator: refusals of the partition under it, in the words that clients of groups know."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.machine import StateLog, Stored

IN_CLIENTS_WORDS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""As Kafka's coordinators translate them; other codes stay."""


class GroupLog:
    """A StateLog over another one. Damage, too, is a refusal here: the partition says for itself that it is offline."""

    __slots__ = ("_log",)

    def __init__(self, log: StateLog) -> None:
        self._log = log

    @property
    def end(self) -> int:
        return self._log.end

    @property
    def committed(self) -> int:
        return self._log.committed

    def append(self, records: Sequence[Stored]) -> int:
        """Append all or nothing. Raises KafkaError with a code that clients of groups know."""
        try:
            return self._log.append(records)
        except KafkaError as refusal:
            code = IN_CLIENTS_WORDS.get(refusal.code, refusal.code)
            raise KafkaError(code, refusal.message) from refusal
        except Damage as damage:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(damage)) from damage

    def on_committed(self, callback: Callable[[], None]) -> None:
        self._log.on_committed(callback)

    def replay(self) -> AsyncIterator[Stored]:
        """Every record from the start to the end. Raises Damage."""
        return self._log.replay()
