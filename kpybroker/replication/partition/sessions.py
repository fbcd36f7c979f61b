"""Incremental fetch sessions (KIP-227): what a consumer or a follower wants, remembered between its requests.

A consumer's session is looked at as a whole by every Fetch. A follower's has as many partitions as it follows of this
broker: there the partitions say of which of them there is news, and only these are looked at.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
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
"""KIP-227's min.incremental.fetch.session.eviction.ms, which Apache Kafka has as a constant."""

PARTITIONS_MAX = 200_000
"""Of all consumers' sessions together, whether they exist or not: each takes some 330 bytes. Replicas have sessions for
the partitions that there are, and count for nothing here."""


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

    def locate(self, partition: Found) -> Found:
        """Remember where it was found on the last look; None to look it up again."""
        self.partition = partition
        return partition

    def tell(self, high_watermark: int, log_start: int) -> bool:
        """Note what the client is told; whether it is told anything new."""
        is_new = high_watermark != self.told_high_watermark or log_start != self.told_log_start
        self.told_high_watermark, self.told_log_start = high_watermark, log_start
        return is_new

    def knows(self, high_watermark: int, log_start: int) -> bool:
        """Whether the client was told these last."""
        return high_watermark == self.told_high_watermark and log_start == self.told_log_start

    def forget_told(self) -> None:
        """The next response tells the client everything again."""
        self.told_high_watermark = -1

    def leave(self) -> None:
        """The session does not hold it any more."""


class ReplicaWant(Want):
    """What a follower asks, and what it tells of its own log by it."""

    __slots__ = ("follower", "last_fetched_epoch", "log_start", "news")

    last_fetched_epoch: int
    log_start: int
    news: News[ReplicaWant]

    def __init__(
        self, topic: str | None, topic_id: bytes, index: int, fetch_offset: int, max_bytes: int, leader_epoch: int
    ) -> None:
        super().__init__(topic, topic_id, index, fetch_offset, max_bytes, leader_epoch)
        self.follower: Follower | None = None
        """Where the leader looks for it when there is news."""

    def tell_of_log(self, last_fetched_epoch: int, log_start: int) -> None:
        """Note what the fetch says of the follower's log."""
        self.last_fetched_epoch, self.log_start = last_fetched_epoch, log_start

    def join(self, news: News[ReplicaWant]) -> None:
        """The session's next Fetch must look at it."""
        self.news = news
        news.wants[self] = None

    def belong_to(self, follower: Follower) -> None:
        """It is this follower that asks; news of the partition are its own."""
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


Wanted = tuple[str | bytes, int]
"""A topic's name, or its id from Fetch 13 on, and a partition's index."""
Rank = tuple[bool, int, int]
"""Whether a session is a replica's, its partitions, its id: the lower one is given up for the higher one."""


class Session:
    """One session: its wants in the order in which they get their turn; `news` where it is a follower's."""

    __slots__ = ("begun_ms", "by_id", "counted", "epoch", "id", "news", "rank", "used_ms", "wants")

    def __init__(
        self,
        session_id: int,
        *,
        by_id: bool,
        wants: OrderedDict[Wanted, Want],
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
        """As it was when the session was used last."""
        self.counted = 0
        """Its partitions, as `Sessions` has counted them."""

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
    """All sessions of a broker, at most `limit`, and of consumers' partitions at most `partitions_limit`.

    Where there is no room left, sessions are given up for a newcomer (KIP-227), one for a slot, several for partitions:

    - one that nobody has used for EVICTION_MS, or else
    - a consumer's for a replica's, or
    - one that has lasted for EVICTION_MS, for one of the same kind with more partitions.
    """

    def __init__(
        self, random: Random, limit: int, now_ms: Callable[[], int], partitions_limit: int = PARTITIONS_MAX
    ) -> None:
        self._random = random
        self._limit = limit
        self._partitions_limit = partitions_limit
        self.partitions = 0
        """Of all consumers' sessions."""
        self._now_ms = now_ms
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        """By id, the one unused for longest first."""
        self._young: dict[int, Session] = {}
        """By id, as they have begun: what had not lasted for EVICTION_MS when a slot was last looked for."""
        self._old: list[Rank] = []
        """All others, sorted, so that a newcomer in vain costs no look at each of them."""

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, wants: OrderedDict[Wanted, Want], *, by_id: bool, is_replica: bool = False) -> Session | None:
        """A new session; None where no room is left for it, and the fetch is then answered without one."""
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

    def update(self, session: Session, wants: OrderedDict[Wanted, Want], forgotten: list[Wanted]) -> list[Want]:
        """Take over what a Fetch of a session says; returned is what it names.

        Raises FETCH_SESSION_ID_NOT_FOUND where it takes more partitions than there is room for: the session is closed,
        and the client begins again as a newcomer.
        """
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
        """Give up one session for a newcomer; False where none has to."""
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
        if is_replica and lowest[0]:
            consumers = (session.rank for session in self._young.values() if session.news is None)
            lowest = min(consumers, default=lowest)
        if lowest >= newcomer:
            return False
        self.close(lowest[2])
        return True

    def resume(self, session_id: int, epoch: int, *, by_id: bool, is_replica: bool = False) -> Session:
        """The session for its next epoch.

        Raises FETCH_SESSION_ID_NOT_FOUND, for one of the other kind too, INVALID_FETCH_SESSION_EPOCH,
        FETCH_SESSION_TOPIC_ID_ERROR.
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
        """An answer was not sent after all: the next one tells everything, as the first one did."""
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
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self.partitions -= session.counted
        if self._young.pop(session_id, None) is None:
            del self._old[bisect_left(self._old, session.rank)]
