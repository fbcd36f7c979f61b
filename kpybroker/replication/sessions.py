"""Incremental fetch sessions (KIP-227): what a consumer or a follower wants, remembered between its requests.

A consumer's session is looked at as a whole by every Fetch. A follower's has as many partitions as it follows of this
broker: there the partitions say of which of them there is news, and only these are looked at.
"""

from __future__ import annotations

from collections import OrderedDict
from random import Random
from typing import TYPE_CHECKING

from kpybroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kpybroker.replication.followers import Follower
    from kpybroker.replication.partition import Partition, Waiter

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
NEVER_MS = -(1 << 62)


class Want:
    """What a fetch asks of one partition, and what it was last told."""

    __slots__ = (
        "fetch_offset",
        "index",
        "leader_epoch",
        "max_bytes",
        "partition",
        "told_high_watermark",
        "told_log_start",
        "topic",
        "topic_id",
    )

    def __init__(
        self, topic: str | None, topic_id: bytes, index: int, fetch_offset: int, max_bytes: int, leader_epoch: int
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.told_high_watermark = -1
        self.told_log_start = -1
        self.partition: Partition | None = None
        """Found on the last look; looked up again when it is no longer led here."""

    def renew(self, want: Want) -> None:
        """What a later fetch of the session asks of the same partition."""
        self.fetch_offset = want.fetch_offset
        self.max_bytes = want.max_bytes
        self.leader_epoch = want.leader_epoch

    def leave(self) -> None:
        """The session does not hold it any more."""


class News:
    """The part of a follower's session that its next Fetch must look at."""

    __slots__ = ("broker_epoch", "counted_ms", "waiter", "wants")

    def __init__(self) -> None:
        self.wants: dict[ReplicaWant, None] = {}
        """Named by the follower, changed since they were looked at, or not told to the end."""
        self.waiter: Waiter | None = None
        """The parked Fetch."""
        self.counted_ms = NEVER_MS
        """When all partitions were looked at last; `broker_epoch` is the follower's by then."""
        self.broker_epoch = -1


class ReplicaWant(Want):
    """What a follower asks, and what it tells of its own log by it."""

    __slots__ = ("follower", "last_fetched_epoch", "log_start", "news")

    last_fetched_epoch: int
    log_start: int
    news: News

    def __init__(
        self, topic: str | None, topic_id: bytes, index: int, fetch_offset: int, max_bytes: int, leader_epoch: int
    ) -> None:
        super().__init__(topic, topic_id, index, fetch_offset, max_bytes, leader_epoch)
        self.follower: Follower | None = None
        """Where the leader looks for it when there is news."""

    def leave(self) -> None:
        self.news.wants.pop(self, None)
        if self.follower is not None and self.follower.want is self:
            self.follower.want = None

    def renew(self, want: Want) -> None:
        assert isinstance(want, ReplicaWant), "a session is a consumer's or a replica's"
        super().renew(want)
        self.last_fetched_epoch, self.log_start = want.last_fetched_epoch, want.log_start


Wanted = tuple[str | bytes, int]
"""A topic's name, or its id from Fetch 13 on, and a partition's index."""


class Session:
    """One session: its wants in the order in which they get their turn; `news` where it is a follower's."""

    __slots__ = ("by_id", "epoch", "id", "news", "wants")

    def __init__(self, session_id: int, *, by_id: bool, wants: OrderedDict[Wanted, Want]) -> None:
        self.id = session_id
        self.epoch = 1
        self.by_id = by_id
        self.wants = wants
        self.news: News | None = None

    def update(self, wants: OrderedDict[Wanted, Want], forgotten: list[Wanted]) -> list[Want]:
        """Take over what a Fetch says; returned is what it names."""
        for key in forgotten:
            wants.pop(key, None)
            gone = self.wants.pop(key, None)
            if gone is not None:
                gone.leave()
        named = []
        for key, want in wants.items():
            known = self.wants.setdefault(key, want)
            if known is not want:
                known.renew(want)
            named.append(known)
        return named

    def had_its_turn(self, key: Wanted) -> None:
        """Move a partition that was served to the end, so that none starves under a small fetch.max.bytes."""
        self.wants.move_to_end(key)


class Sessions:
    """All sessions of a broker, at most `limit`; the one unused for longest gives way to a new one."""

    def __init__(self, random: Random, limit: int) -> None:
        self._random = random
        self._limit = limit
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, wants: OrderedDict[Wanted, Want], *, by_id: bool) -> Session | None:
        """A new session; None where the limit allows none, and the fetch is then answered without one."""
        if self._limit <= 0:
            return None
        while len(self._sessions) >= self._limit:
            self._sessions.popitem(last=False)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._random.randrange(1, 2**31)
        session = self._sessions[session_id] = Session(session_id, by_id=by_id, wants=wants)
        return session

    def resume(self, session_id: int, epoch: int, *, by_id: bool) -> Session:
        """The session for its next epoch.

        Raises FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)
