"""Incremental fetch sessions (KIP-227), which keep the partitions that a consumer or a follower fetches.

A Fetch of a consumer checks all partitions of its session. A follower's session has all partitions that it follows from
this broker; its Fetches check only partitions with news (see `news`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import TypeVar

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.partition.followers import Follower
from kpybroker.replication.partition.news import News
from kpybroker.replication.partition.partition import Partition

Found = TypeVar("Found", Partition, None)

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
EVICTION_MS = 120_000
"""KIP-227's min.incremental.fetch.session.eviction.ms, a constant in Apache Kafka."""

PARTITIONS_MAX = 200_000
"""The most partitions in all consumers' sessions together. Each takes about 330 bytes, and the bytes of its topic's
name. A consumer's session may have partitions that do not exist. Replicas' sessions do not count: they have only
partitions that exist."""

NAME_LENGTH_MAX = 249
"""The most characters in a topic name. No session is opened or updated with a longer name."""


class Want:
    """The position and limits that a Fetch requests for one partition, and the values in the last response about it."""

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
        """The partition as it was last looked up. It is looked up again when this broker no longer leads it."""

    def renew(self, want: Want) -> None:
        """Adopt the values of a later Fetch of the session for the same partition."""
        self.fetch_offset = want.fetch_offset
        self.max_bytes = want.max_bytes
        self.leader_epoch = want.leader_epoch

    def locate(self, partition: Found) -> Found:
        """Cache the partition. None means that it is looked up again."""
        self.partition = partition
        return partition

    def tell(self, high_watermark: int, log_start: int) -> bool:
        """Note the values in a response. Returns whether any of them has changed."""
        is_new = high_watermark != self.told_high_watermark or log_start != self.told_log_start
        self.told_high_watermark, self.told_log_start = high_watermark, log_start
        return is_new

    def knows(self, high_watermark: int, log_start: int) -> bool:
        """Whether the last response had these values."""
        return high_watermark == self.told_high_watermark and log_start == self.told_log_start

    def forget_told(self) -> None:
        """Include the partition in the next response, even if it has not changed."""
        self.told_high_watermark = -1

    def leave(self) -> None:
        """Called when the session drops the partition."""


class ReplicaWant(Want):
    """A follower's `Want`. It also has the values that the Fetch reports about the follower's own log."""

    __slots__ = ("follower", "last_fetched_epoch", "log_start", "news")

    last_fetched_epoch: int
    log_start: int
    news: News[ReplicaWant]

    def __init__(
        self, topic: str | None, topic_id: bytes, index: int, fetch_offset: int, max_bytes: int, leader_epoch: int
    ) -> None:
        super().__init__(topic, topic_id, index, fetch_offset, max_bytes, leader_epoch)
        self.follower: Follower | None = None
        """The leader's record of this follower, which notes news for this session."""

    def tell_of_log(self, last_fetched_epoch: int, log_start: int) -> None:
        """Note the values that the Fetch reports about the follower's log: the epoch of its last record, and its
        start."""
        self.last_fetched_epoch, self.log_start = last_fetched_epoch, log_start

    def join(self, news: News[ReplicaWant]) -> None:
        """Let this or the next Fetch of the session check the partition."""
        self.news = news
        news.wants[self] = None

    def belong_to(self, follower: Follower) -> None:
        """Subscribe the session to changes of the partition that the leader notes for this follower."""
        self.follower = follower
        follower.attach(self.news, self)

    def leave(self) -> None:
        self.news.wants.pop(self, None)
        if self.follower is not None:
            self.follower.detach(self)

    def renew(self, want: Want) -> None:
        assert isinstance(want, ReplicaWant), "a session is a consumer's or a replica's"
        super().renew(want)
        self.last_fetched_epoch, self.log_start = want.last_fetched_epoch, want.log_start


SessionKey = tuple[str | bytes, int]
"""A topic's name (its id from Fetch 13 on) and a partition's index."""
Rank = tuple[bool, int, int]
"""Whether a session is a replica's, its number of partitions, and its id. A session with a lower rank is evicted for
one with a higher rank."""


class Session:
    """One session. `wants` is in the order in which partitions are served. `news` is None for a consumer's session."""

    __slots__ = ("begun_ms", "by_id", "counted", "epoch", "id", "news", "rank", "used_ms", "wants")

    def __init__(
        self,
        session_id: int,
        *,
        by_id: bool,
        wants: OrderedDict[SessionKey, Want],
        is_replica: bool = False,
        now_ms: int = 0,
    ) -> None:
        self.id = session_id
        self.epoch = 1
        self.by_id = by_id
        self.wants = wants
        self.news: News[ReplicaWant] | None = News() if is_replica else None
        self.begun_ms = self.used_ms = now_ms
        self.rank: Rank = (is_replica, len(wants), session_id)
        """The rank at the last use of the session."""
        self.counted = 0
        """The number of its partitions that `FetchSessions` has counted."""

    def update(self, wants: OrderedDict[SessionKey, Want], forgotten: list[SessionKey]) -> list[Want]:
        """Apply a Fetch to the session, and return the wants of the partitions in the Fetch."""
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

    def had_its_turn(self, key: SessionKey) -> None:
        """Move a partition that was served to the end, so that every partition is served even with a small
        fetch.max.bytes."""
        self.wants.move_to_end(key)


def has_long_name(wants: Iterable[SessionKey]) -> bool:
    """Whether one of the names is too long for a topic."""
    return any(len(topic) > NAME_LENGTH_MAX for topic, _ in wants)


class FetchSessions:
    """All sessions of a broker: at most `limit`, with at most `partitions_limit` partitions of consumers.

    If there is no room for a new session, other sessions are evicted (KIP-227): one if there are too many sessions, and
    several if there are too many partitions. A session may be evicted if

    - it has not been used for EVICTION_MS,
    - it is a consumer's session and the new session is a replica's, or
    - it is older than EVICTION_MS, and the new session is of the same kind and has more partitions.
    """

    def __init__(
        self, random: Random, limit: int, now_ms: Callable[[], int], partitions_limit: int = PARTITIONS_MAX
    ) -> None:
        self._random = random
        self._limit = limit
        self._partitions_limit = partitions_limit
        self.partitions = 0
        """The number of partitions in consumers' sessions."""
        self._now_ms = now_ms
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        """Sessions by id, with the least recently used one first."""
        self._young: dict[int, Session] = {}
        """Sessions by id, with the oldest one first. These sessions were younger than EVICTION_MS at the last attempt
        to evict one."""
        self._old: list[Rank] = []
        """The ranks of all other sessions, sorted, so that not all of them are checked before a new session is
        refused."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """The sessions, with the least recently used one first."""
        return iter(list(self._sessions.values()))

    def open(self, wants: OrderedDict[SessionKey, Want], *, by_id: bool, is_replica: bool = False) -> Session | None:
        """Open a session. Returns None if there is no room, in which case the response contains no session."""
        if has_long_name(wants):
            return None
        now_ms, rank = self._now_ms(), (is_replica, len(wants), 0)
        if len(self._sessions) >= self._limit and not self._make_room(rank, now_ms):
            return None
        if not is_replica:
            if len(wants) > self._partitions_limit:
                return None
            while self.partitions + len(wants) > self._partitions_limit:
                if not self._make_room(rank, now_ms):
                    return None
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._random.randrange(1, 2**31)
        session = Session(session_id, by_id=by_id, wants=wants, is_replica=is_replica, now_ms=now_ms)
        self._sessions[session_id] = self._young[session_id] = session
        self._count(session)
        return session

    def update(self, session: Session, wants: OrderedDict[SessionKey, Want], forgotten: list[SessionKey]) -> list[Want]:
        """Apply a Fetch to its session, and return the wants of the partitions in the Fetch.

        Raises FETCH_SESSION_ID_NOT_FOUND if there is no room for its partitions, or if a name is too long. In both
        cases the session is closed, and the client opens another one.
        """
        if has_long_name(wants):
            self.close(session.id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        named = session.update(wants, forgotten)
        if len(session.wants) > session.counted and session.news is None:
            self._count(session)
            if self.partitions > self._partitions_limit:
                self.close(session.id)
                raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return named

    def _count(self, session: Session) -> None:
        if session.news is None:
            self.partitions += len(session.wants) - session.counted
            session.counted = len(session.wants)

    def _make_room(self, newcomer: Rank, now_ms: int) -> bool:
        """Evict one session in favour of a new one. Returns False if no session may be evicted."""
        unused = next(iter(self._sessions.values()), None)
        if unused is None:
            return False
        if now_ms - unused.used_ms > EVICTION_MS:
            self.close(unused.id)
            return True
        while self._young:
            session = next(iter(self._young.values()))
            if now_ms - session.begun_ms <= EVICTION_MS:
                break
            del self._young[session.id]
            insort(self._old, session.rank)
        lowest = self._old[0] if self._old else newcomer
        is_replica = newcomer[0]
        if is_replica:
            consumers = [session.rank for session in self._young.values() if session.news is None]
            lowest = min([lowest, *consumers])
        if lowest >= newcomer:
            return False
        self.close(lowest[2])
        return True

    def resume(self, session_id: int, epoch: int, *, by_id: bool, is_replica: bool = False) -> Session:
        """Return the session with this id, and advance it to its next epoch.

        Raises FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, or FETCH_SESSION_TOPIC_ID_ERROR. A consumer's
        session is not found by a replica, and a replica's session is not found by a consumer.
        """
        session = self._sessions.get(session_id)
        if session is None or is_replica is not (session.news is not None):
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        session.used_ms = self._now_ms()
        self._sessions.move_to_end(session_id)
        if session.rank[1] != len(session.wants):
            self._rank_again(session)
        return session

    def forget_what_was_told(self, session_id: int) -> None:
        """Include every partition in the next response, because the last response was not sent."""
        session = self._sessions.get(session_id)
        for want in () if session is None else session.wants.values():
            want.forget_told()

    def _rank_again(self, session: Session) -> None:
        self._count(session)
        is_old = session.id not in self._young
        if is_old:
            del self._old[bisect_left(self._old, session.rank)]
        session.rank = (session.news is not None, len(session.wants), session.id)
        if is_old:
            insort(self._old, session.rank)

    def close(self, session_id: int) -> None:
        """Close the session with this id, if there is one."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self.partitions -= session.counted
        if self._young.pop(session_id, None) is None:
            del self._old[bisect_left(self._old, session.rank)]
