"""The interface of the clients in the scenarios. One adapter per client translates these operations to the client's
API."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Protocol, Self

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Acks = Literal["0", "1", "all", "idempotent"]
Strategy = Literal["eager", "cooperative"]
Isolation = Literal["read_uncommitted", "read_committed"]
Header = tuple[str, bytes | None]
Place = tuple[str, int]
"""(topic, partition)"""

CODECS: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS: tuple[Acks, ...] = ("0", "1", "all", "idempotent")
LARGEST_BYTES = 16 << 20
"""Every client's own limits are set to this value, so that only the limits of broker and topic matter."""


@dataclass(frozen=True, slots=True)
class Message:
    """One record to send. If the partition is None, the client chooses it."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """One record as a consumer received it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """The partition and offset of a record; the offset is -1 if the broker sent no response (acks=0)."""

    partition: int
    offset: int


class Refused(Exception):
    """The client reported an error for a record or a call; the text is the client's."""


Done = Callable[[Placed | Refused], None]


class Producer(Protocol):
    """Sends in the background; `done` is called in a thread of the client."""

    def send(self, topic: str, message: Message, done: Done) -> None: ...
    def flush(self, timeout_s: float) -> None: ...
    def close(self) -> None: ...


class Consumer(Protocol):
    """Used from one thread only. Offsets are committed only by `commit`."""

    assignments: int
    """How often the group assigned partitions to this member, or revoked them."""

    def subscribe(self, topics: Sequence[str]) -> None: ...
    def assign(self, starts: Mapping[Place, int | Literal["earliest", "latest"]]) -> None: ...
    def assignment(self) -> set[Place]: ...
    def poll(self, timeout_s: float) -> list[Received]: ...
    def commit(self) -> None: ...
    def committed(self, place: Place) -> int | None: ...
    def position(self, place: Place) -> int: ...
    def seek(self, place: Place, offset: int) -> None: ...
    def pause(self, place: Place) -> None: ...
    def resume(self, place: Place) -> None: ...
    def offset_at(self, place: Place, timestamp_ms: int) -> int | None: ...
    def close(self) -> None: ...


class TransactionalProducer(Protocol):
    """Used from one thread only. Every call raises Refused, whose text begins with the client's name of the error."""

    def begin(self) -> None: ...
    def send(self, topic: str, message: Message) -> None:
        """Send in the background. If a record is refused, `flush` or `commit` raises Refused."""

    def flush(self) -> None: ...
    def send_offsets(self, offsets: Mapping[Place, int], consumer: Consumer, group: str) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Client(Protocol):
    """One client library."""

    name: str
    version: str
    strategies: tuple[Strategy, ...]

    def producer(
        self,
        bootstrap: str,
        *,
        codec: Codec = "none",
        acks: Acks = "all",
        linger_ms: int = 5,
        patience_s: float = 60,
        batch_bytes: int = 1 << 20,
    ) -> Producer: ...

    def can_send(self, message: Message) -> bool:
        """False for records that the client itself refuses to send."""

    def consumer(
        self,
        bootstrap: str,
        *,
        group: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        strategy: Strategy = "eager",
        instance: str | None = None,
        isolation: Isolation = "read_uncommitted",
    ) -> Consumer: ...

    def transactional(
        self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> TransactionalProducer:
        """A producer that has initialized its id: earlier ones are fenced, and their open transactions aborted."""


@dataclass(slots=True)
class Receipts:
    """Collects the outcome of each message sent, in order of sending."""

    outcomes: list[Placed | Refused | None] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def expect(self) -> Done:
        with self._lock:
            at = len(self.outcomes)
            self.outcomes.append(None)

        def done(outcome: Placed | Refused) -> None:
            self.outcomes[at] = outcome

        return done

    def all_placed(self) -> list[Placed]:
        """All outcomes. Raises Refused if one of them is not a success."""
        placed: list[Placed] = []
        for at, outcome in enumerate(self.outcomes):
            if isinstance(outcome, Placed):
                placed.append(outcome)
            else:
                raise Refused(f"message {at} of {len(self.outcomes)}: {outcome or 'no response'}")
        return placed


class closing:  # noqa: N801 - reads as contextlib's
    """Close a producer or consumer at the end of the block."""

    def __init__(self, *things: Producer | Consumer | TransactionalProducer) -> None:
        self.things = things

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thing in self.things:
            thing.close()


def send_all(producer: Producer, topic: str, messages: Iterable[Message], timeout_s: float = 60) -> list[Placed]:
    """Send, wait for every outcome, and return the offsets. Raises Refused if a record was refused."""
    receipts = Receipts()
    for message in messages:
        producer.send(topic, message, receipts.expect())
    producer.flush(timeout_s)
    return receipts.all_placed()
