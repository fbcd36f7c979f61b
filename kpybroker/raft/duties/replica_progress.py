"""Tracks the progress of each replica of the metadata log, according to its fetches from this leader.

DescribeQuorum returns the progress (KIP-836), and AddRaftVoter requires that the new voter has caught up (KIP-853).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.raft.core.voter_set import NO_DIRECTORY, Endpoint, Voter
from kpybroker.raft.driver import Driver
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc import describe_quorum

if TYPE_CHECKING:
    from kpybroker.world import World

REPLICAS_MAX = 1000
"""The most replicas that are remembered; beyond this, the replica that fetched least recently is forgotten."""
CAUGHT_UP_MS = 3_600_000
NEVER_MS = -1
OBSERVER_SESSION_MS = 300_000
"""The time after which an observer that does not fetch is no longer listed (Kafka's value)."""


class Progress(NamedTuple):
    """One replica's progress. A time of -1 means never."""

    end: int
    fetched_ms: int
    """The time of its last fetch, on the steady clock."""
    caught_up_ms: int
    leader_end: int
    """The end of the leader's log at that time."""


class ReplicaProgress:
    """The progress of the replicas in the leader's epoch. On any other node this is empty."""

    def __init__(self, world: World, driver: Driver) -> None:
        self._world = world
        self._driver = driver
        self._replicas: dict[tuple[int, bytes], Progress] = {}
        """The progress by node id and directory id. The replica that fetched most recently is the last one."""

    def fetched(self, key: tuple[int, bytes], offset: int) -> None:
        """Record that a replica (node id, directory id) has every record below `offset`, and that its log agrees with
        the leader's."""
        now_ms, end = self._world.steady_ms(), self._driver.log.end
        before = self._replicas.pop(key, None)
        caught_up_ms = NEVER_MS
        if offset >= end:
            caught_up_ms = now_ms
        elif before is not None:
            had_all = offset >= before.leader_end  # the replica has all records that existed at its last fetch
            caught_up_ms = max(before.caught_up_ms, before.fetched_ms if had_all else NEVER_MS)
        if before is None and len(self._replicas) >= REPLICAS_MAX:
            del self._replicas[next(iter(self._replicas))]
        self._replicas[key] = Progress(offset, now_ms, caught_up_ms, end)

    def is_caught_up(self, node_id: int, directory_id: bytes) -> bool:
        """Whether the replica had the whole log at some time within the last hour (Kafka's condition for a new
        voter)."""
        progress = self._replicas.get((node_id, directory_id))
        if progress is None or progress.caught_up_ms == NEVER_MS:
            return False
        return self._world.steady_ms() - progress.caught_up_ms < CAUGHT_UP_MS

    def forget_all(self) -> None:
        """Forget all replicas, because this node no longer leads."""
        self._replicas.clear()

    def describe(self) -> describe_quorum.Response:
        """The response to DescribeQuorum. Raises NOT_LEADER_OR_FOLLOWER."""
        driver, now_ms = self._driver, self._world.steady_ms()
        if not driver.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        row = describe_quorum.PartitionDataReply(
            error_message=None,
            leader_id=driver.leader_id,
            leader_epoch=driver.epoch,
            high_watermark=driver.state.told_high_watermark,
            current_voters=[self._replica(key, now_ms) for key in self._voter_keys()],
            observers=[
                self._replica(key, now_ms)
                for key, progress in self._replicas.items()
                if not driver.voters.counts(*key) and now_ms - progress.fetched_ms < OBSERVER_SESSION_MS
            ],
        )
        topic = describe_quorum.TopicDataReply(topic_name=METADATA_TOPIC, partitions=[row])
        return describe_quorum.Response(error_message=None, topics=[topic], nodes=self._nodes())

    def _voter_keys(self) -> list[tuple[int, bytes]]:
        """The ids and directories of the voters. At kraft.version 0, the directories are taken from their fetches."""
        voters = self._driver.voters
        if voters.kraft_version:
            return [voter.key for voter in voters.set.voters]
        fetching = dict(self._replicas.keys())
        fetching[self._driver.identity.node_id] = self._driver.identity.directory_id
        return [(node_id, fetching.get(node_id, NO_DIRECTORY)) for node_id in voters.ids]

    def _replica(self, key: tuple[int, bytes], now_ms: int) -> describe_quorum.ReplicaState:
        driver = self._driver
        shown = describe_quorum.ReplicaState(replica_id=key[0], replica_directory_id=key[1], log_end_offset=-1)
        progress = self._replicas.get(key)
        if key == (driver.identity.node_id, driver.identity.directory_id):
            progress = Progress(driver.log.end, now_ms, now_ms, driver.log.end)
        if progress is not None:
            shown.log_end_offset = progress.end
            ahead_ms = self._world.wall_ms() - now_ms  # the response has wall-clock times
            shown.last_fetch_timestamp = progress.fetched_ms + ahead_ms
            if progress.caught_up_ms != NEVER_MS:
                shown.last_caught_up_timestamp = progress.caught_up_ms + ahead_ms
        return shown

    def _nodes(self) -> list[describe_quorum.Node]:
        listed = [(voter.node_id, self.endpoints(voter)) for voter in self._driver.voters.set.voters]
        return [
            describe_quorum.Node(
                node_id=node_id,
                listeners=[describe_quorum.Listener(name=name, host=host, port=port) for name, host, port in found],
            )
            for node_id, found in listed
            if found
        ]

    def endpoints(self, voter: Voter) -> list[Endpoint]:
        """The listeners of a voter, from the log. At kraft.version 0 this is the address that this node knows."""
        if self._driver.kraft_version:
            return list(voter.endpoints)
        address = self._driver.addresses.of(voter.node_id)
        return [] if address is None else [(self._driver.config.controller_listener_names[0], *address)]
