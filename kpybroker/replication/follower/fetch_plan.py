"""Plans the next Fetch to one leader: the position of each partition, unless the leader already knows it.

A follower may follow thousands of partitions of one leader, most of them idle. So the plan checks only partitions that
have changed since the last Fetch. Four times a second it checks all partitions, to detect a log start that has moved, a
changed setting, or a partition that has gone offline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.replication.follower.context import FetcherContext
from kpybroker.replication.follower.fetch_session import FetchSession, PartitionFetch
from kpybroker.replication.follower.follower_log import FetchPosition, position_of
from kpybroker.replication.partition.partition import Partition
from kpybroker.topics import TopicIdPartition
from kpybroker.wire.rpc import fetch

log = logging.getLogger(__name__)

RETRY_MS = 20
"""The delay after the first refusal. It doubles with each further refusal, up to replica.fetch.backoff.ms."""
UNUSABLE = (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
"""The refusals of records that the leader sent."""
LOOK_AT_ALL_S = 0.25
WITHOUT_SESSION_MS = 20
"""The time for which the leader may park a Fetch that leaves partitions for the next Fetch, if there is no session.
Without a session, every Fetch contains all its partitions, and the next Fetch would follow at once."""


class FetchPlan:
    """The partitions of one leader. `look` finds the partitions that may be fetched now, and `request` builds the Fetch
    for them."""

    def __init__(self, context: FetcherContext, now_s: Callable[[], float]) -> None:
        self._context = context
        self._now_s = now_s
        self.session = FetchSession()
        self._partitions: dict[TopicIdPartition, Partition] = {}
        self._touched: dict[TopicIdPartition, None] = {}
        """Partitions that changed since the last request."""
        self._left: frozenset[TopicIdPartition] = frozenset()
        """Partitions that were left out of the last request, because there was no room."""
        self._ready: dict[TopicIdPartition, tuple[Partition, FetchPosition]] = {}
        """The partitions that `look` has found, and the positions from which to fetch them."""
        self._looked_at: list[TopicIdPartition] = []
        self._is_whole = False
        """Whether the last `look` checked all partitions."""
        self._whole_at_s = 0.0
        """The time at which all partitions are checked again, in seconds of the event loop's clock."""
        self._delayed: dict[TopicIdPartition, tuple[float, int]] = {}
        """For each refused partition, the end of its delay in seconds of the event loop's clock, and the delay in
        ms."""
        self._is_slowed = False
        """Whether the last `look` left out a partition because of the throttle."""

    def __len__(self) -> int:
        return len(self._partitions)

    def follow(self, partition: Partition) -> None:
        """Fetch a partition from now on, from its current leader epoch."""
        key = (partition.topic_id, partition.index)
        self._partitions[key] = partition
        self._delayed.pop(key, None)
        self._touched[key] = None

    def written(self, partition: Partition) -> None:
        """Check a partition again, because a thread has written its records."""
        self._touched[partition.topic_id, partition.index] = None

    def leave(self, partition: Partition) -> None:
        """Stop fetching a partition."""
        key = (partition.topic_id, partition.index)
        if self._partitions.get(key) is partition:
            del self._partitions[key]
            self._delayed.pop(key, None)
            self._ready.pop(key, None)
            self._touched[key] = None

    # ---- before a fetch

    def look(self) -> bool:
        """Find the partitions that may be fetched now, and return whether there are any. There are none before this
        broker has registered."""
        if self._context.broker_epoch() < 0:
            return False
        now_s, throttle = self._now_s(), self._context.throttle
        self._is_whole = (
            self.session.is_new
            or now_s >= self._whole_at_s
            or throttle.is_limited
            or self._is_slowed
            or bool(self._delayed)
        )
        self._is_slowed = False
        must_wait = throttle.is_limited and throttle.must_wait
        if self._is_whole:
            self._looked_at = list(self._partitions)
            self._ready = {}
        else:
            self._looked_at = list(self._touched)
        for key in self._looked_at:
            partition = self._partitions.get(key)
            place = None if partition is None else self._position(key, partition, now_s, must_wait=must_wait)
            if partition is None or place is None:
                self._ready.pop(key, None)
            else:
                self._ready[key] = partition, place
        return bool(self._ready)

    def _position(
        self, key: TopicIdPartition, partition: Partition, now_s: float, *, must_wait: bool
    ) -> FetchPosition | None:
        """The position to fetch from; None if the partition may not be fetched now."""
        if partition.offline is not None or (self._delayed and self._delayed.get(key, (0.0, 0))[0] > now_s):
            return None
        if must_wait and self.slows(partition):
            self._is_slowed = True
            return None
        try:
            place = position_of(partition)
        except KafkaError as refusal:
            self.delay(key, refusal)
            return None
        except Damage as damage:
            partition.fail(str(damage))
            return None
        # a Fetch claims everything below its offset, but a thread is still writing some of it
        return place if partition.log.behind is None else None

    def next_s(self) -> float | None:
        """Seconds until the first delayed partition is due; None if no partition is delayed."""
        waits_s = [until_s - self._now_s() for until_s, _ in self._delayed.values()]
        if self._is_slowed:
            waits_s.append(self._context.throttle.wait_ms / 1000)
        return max(min(waits_s), 0.001) if waits_s else None

    def unsynced(self) -> list[Partition]:
        """The partitions to sync before the next request, because it would claim records that are not synced yet."""
        found = (self._ready[key] for key in self._looked_at if key in self._ready)
        return [one for one, place in found if one.log.settings.fsync_always and one.log.synced_end < place.offset]

    def request(self, wait_ms: int) -> fetch.Request:
        """Build a Fetch of the partitions that `look` has found, without those whose position the leader already knows.
        Partitions for which there is no room are left for the next Fetch."""
        config, context, ready = self._context.config(), self._context, self._ready
        wanted = {key: self._asked(*ready[key]) if key in ready else None for key in self._looked_at}
        changed, forgotten, left = self.session.news(wanted, is_whole=self._is_whole)
        self._touched = dict.fromkeys(left)
        self._left = frozenset(left)
        if left:
            wait_ms = WITHOUT_SESSION_MS if self.session.is_refused else 0
            for key in left:
                ready.pop(key, None)
            for key in changed:  # the next check of all partitions begins with the other ones
                self._partitions[key] = self._partitions.pop(key)
        if self._is_whole:
            self._whole_at_s = self._now_s() + LOOK_AT_ALL_S
        topics: dict[bytes, fetch.FetchTopic] = {}
        for key, (place, log_start, max_bytes) in changed.items():
            topic_id, index = key
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = fetch.FetchTopic(topic=ready[key][0].topic, topic_id=topic_id, partitions=[])
            topic.partitions.append(
                fetch.FetchPartition(
                    partition=index,
                    current_leader_epoch=place.leader_epoch,
                    fetch_offset=place.offset,
                    last_fetched_epoch=place.last_epoch,
                    log_start_offset=log_start,
                    partition_max_bytes=max_bytes,
                )
            )
        return fetch.Request(
            replica_id=context.node_id,
            replica_state=fetch.ReplicaState(replica_id=context.node_id, replica_epoch=context.broker_epoch()),
            max_wait_ms=wait_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=self.session.id,
            session_epoch=self.session.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=[
                fetch.ForgottenTopic(topic_id=topic_id, partitions=[index]) for topic_id, index in forgotten
            ],
        )

    def _asked(self, partition: Partition, place: FetchPosition) -> PartitionFetch:
        config = self._context.config()
        max_bytes = config.replica_fetch_max_bytes
        if self.slows(partition):
            max_bytes = min(max_bytes, self._context.throttle.rate)
        return PartitionFetch(place, partition.log.start, max_bytes)

    def slows(self, partition: Partition) -> bool:
        """Whether the throttle applies to the partition's records."""
        return self._context.throttle.slows(partition, self._context.node_id)

    # ---- after a fetch

    def asked(self, key: TopicIdPartition) -> tuple[Partition, FetchPosition] | None:
        """The partition and its position in the Fetch; None if either has changed since. The next `look` checks the
        partition."""
        self._touched[key] = None
        asked = self._ready.get(key)
        if asked is None or self._partitions.get(key) is not asked[0]:
            return None
        try:
            return asked if asked[1] == position_of(asked[0]) else None
        except (Damage, KafkaError):
            return None  # the next `look` gets the same error, and handles it

    def is_left(self, key: TopicIdPartition) -> bool:
        """Whether the last request left this partition to a later one."""
        return key in self._left

    def served(self, key: TopicIdPartition) -> None:
        """Clear the delay of a partition that the leader did not refuse."""
        self._delayed.pop(key, None)

    def delay(self, key: TopicIdPartition, refusal: KafkaError) -> None:
        """Fetch a refused partition again after a delay, which doubles with each refusal. The first refusal because of
        the records themselves is logged, since the next ones come from the same records."""
        _, waited_ms = self._delayed.get(key, (0.0, 0))
        if not waited_ms and refusal.code in UNUSABLE and key in self._partitions:
            log.warning("%r cannot follow its leader: %s", self._partitions[key], refusal)
        wait_ms = min(max(2 * waited_ms, RETRY_MS), self._context.config().replica_fetch_backoff_ms)
        self._delayed[key] = self._now_s() + wait_ms / 1000, wait_ms
        log.debug("%s-%d is fetched again in %d ms: %s", key[0].hex(), key[1], wait_ms, refusal)
