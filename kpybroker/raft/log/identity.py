"""The identity of this node in the quorum, and the requests that it sends to the other nodes."""

from __future__ import annotations

from hashlib import sha256
from random import Random
from typing import Any, NamedTuple

from kpybroker.config import BrokerConfig
from kpybroker.metadata.image import ELR_FEATURE, GROUP_FEATURE, SHARE_FEATURE, STREAMS_FEATURE, TRANSACTION_FEATURE
from kpybroker.raft.core import state as raft
from kpybroker.raft.core.voter_set import KRAFT_VERSIONS, NO_DIRECTORY, Voter, VoterSet
from kpybroker.storage.dirs.formatting import FirstVoter, Format, encode_id, random_id
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc import (
    add_raft_voter,
    begin_quorum_epoch,
    end_quorum_epoch,
    fetch,
    fetch_snapshot,
    remove_raft_voter,
    update_raft_voter,
    vote,
)

METADATA_TOPIC_ID = bytes(15) + b"\x01"
FINALIZED_AT_FORMAT = {
    "metadata.version": 30,
    ELR_FEATURE: 1,
    GROUP_FEATURE: 1,
    SHARE_FEATURE: 1,
    STREAMS_FEATURE: 1,
    TRANSACTION_FEATURE: 2,
}


class Identity(NamedTuple):
    """The ids of this node and its cluster. `listener` has the name, host and port of the controller listener, or is
    None."""

    cluster_id: str
    node_id: int
    directory_id: bytes
    listener: tuple[str, str, int] | None

    @property
    def client_id(self) -> str:
        return f"raft-client-{self.node_id}"

    def vote(self, question: raft.AskVote, voters: VoterSet) -> vote.Request:
        """A Vote request."""
        asked = vote.PartitionData(
            replica_epoch=question.epoch,
            replica_id=self.node_id,
            replica_directory_id=self.directory_id,
            voter_directory_id=_directory_of(question.to, voters),
            last_offset_epoch=question.tail.epoch,
            last_offset=question.tail.end,
            pre_vote=question.is_pre_vote,
        )
        topic = vote.TopicData(topic_name=METADATA_TOPIC, partitions=[asked])
        return vote.Request(cluster_id=self.cluster_id, voter_id=question.to, topics=[topic])

    def begin(self, question: raft.AskBegin, voters: VoterSet) -> begin_quorum_epoch.Request:
        """A BeginQuorumEpoch request, with this node's address."""
        told = begin_quorum_epoch.PartitionData(
            voter_directory_id=_directory_of(question.to, voters),
            leader_id=self.node_id,
            leader_epoch=question.epoch,
        )
        return begin_quorum_epoch.Request(
            cluster_id=self.cluster_id,
            voter_id=question.to,
            topics=[begin_quorum_epoch.TopicData(topic_name=METADATA_TOPIC, partitions=[told])],
            leader_endpoints=self._endpoints(begin_quorum_epoch.LeaderEndpoint),
        )

    def end(self, question: raft.AskEnd, voters: VoterSet) -> end_quorum_epoch.Request:
        """An EndQuorumEpoch request, with the preferred successors in order."""
        told = end_quorum_epoch.PartitionData(
            leader_id=self.node_id,
            leader_epoch=question.epoch,
            preferred_successors=list(question.successors),
            preferred_candidates=[
                end_quorum_epoch.ReplicaInfo(candidate_id=node, candidate_directory_id=_directory_of(node, voters))
                for node in question.successors
            ],
        )
        return end_quorum_epoch.Request(
            cluster_id=self.cluster_id,
            topics=[end_quorum_epoch.TopicData(topic_name=METADATA_TOPIC, partitions=[told])],
            leader_endpoints=self._endpoints(end_quorum_epoch.LeaderEndpoint),
        )

    @property
    def voter(self) -> Voter:
        """This node as a voter."""
        return Voter(self.node_id, self.directory_id, () if self.listener is None else (self.listener,))

    def added(self, timeout_ms: int) -> add_raft_voter.Request:
        """An AddRaftVoter request for this node."""
        return add_raft_voter.Request(
            cluster_id=self.cluster_id,
            timeout_ms=timeout_ms,
            voter_id=self.node_id,
            voter_directory_id=self.directory_id,
            listeners=self._endpoints(add_raft_voter.Listener),
            ack_when_committed=False,
        )

    def removed(self, voter: Voter) -> remove_raft_voter.Request:
        """A RemoveRaftVoter request for a voter with this node's id and another directory."""
        return remove_raft_voter.Request(
            cluster_id=self.cluster_id, voter_id=voter.node_id, voter_directory_id=voter.directory_id
        )

    def updated(self, epoch: int) -> update_raft_voter.Request:
        """An UpdateRaftVoter request: this node's address and the kraft.versions that it supports."""
        low, high = KRAFT_VERSIONS
        return update_raft_voter.Request(
            cluster_id=self.cluster_id,
            current_leader_epoch=epoch,
            voter_id=self.node_id,
            voter_directory_id=self.directory_id,
            listeners=self._endpoints(update_raft_voter.Listener),
            kraft_version_feature=update_raft_voter.KRaftVersionFeature(
                min_supported_version=low, max_supported_version=high
            ),
        )

    def _endpoints(self, kind: Any) -> list[Any]:
        if self.listener is None:
            return []
        name, host, port = self.listener
        return [kind(name=name, host=host, port=port)]

    def fetch(
        self, epoch: int, tail: raft.Tail, *, log_start: int, high_watermark: int, wait_ms: int, max_bytes: int
    ) -> fetch.Request:
        """A Fetch request for the records after `tail`. The leader holds it for up to `wait_ms` if it has nothing
        new."""
        wanted = fetch.FetchPartition(
            current_leader_epoch=epoch,
            fetch_offset=tail.end,
            last_fetched_epoch=tail.epoch,
            log_start_offset=log_start,
            partition_max_bytes=max_bytes,
            replica_directory_id=self.directory_id,
            high_watermark=high_watermark,
        )
        return fetch.Request(
            cluster_id=self.cluster_id,
            replica_id=self.node_id,
            replica_state=fetch.ReplicaState(replica_id=self.node_id),
            max_wait_ms=wait_ms,
            max_bytes=max_bytes,
            topics=[fetch.FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[wanted])],
        )

    def fetch_snapshot(self, epoch: int, snapshot: raft.Tail, position: int, max_bytes: int) -> fetch_snapshot.Request:
        """A FetchSnapshot request from byte `position` on."""
        wanted = fetch_snapshot.PartitionSnapshot(
            current_leader_epoch=epoch,
            snapshot_id=fetch_snapshot.SnapshotId(end_offset=snapshot.end, epoch=snapshot.epoch),
            position=position,
            replica_directory_id=self.directory_id,
        )
        return fetch_snapshot.Request(
            cluster_id=self.cluster_id,
            replica_id=self.node_id,
            max_bytes=max_bytes,
            topics=[fetch_snapshot.TopicSnapshot(name=METADATA_TOPIC, partitions=[wanted])],
        )


def _directory_of(node_id: int, voters: VoterSet) -> bytes:
    voter = voters.get(node_id)
    return NO_DIRECTORY if voter is None else voter.directory_id


def wanted_format(config: BrokerConfig) -> Format:
    """How this node formats an empty directory.

    A controller without controller.quorum.voters is the only voter, which it writes into its first snapshot
    (kraft.version 1).
    """
    voter: tuple[str, str, int] | None = None
    first: tuple[FirstVoter, ...] = ()
    if "controller" in config.process_roles and not config.controller_quorum_voters:
        if config.initial_controllers is None:
            voter = listener_of(config) or ("CONTROLLER", "127.0.0.1", 0)
        else:
            name = config.controller_listener_names[0]
            first = tuple(
                (one.node_id, one.directory_id, (name, one.host, one.port)) for one in config.initial_controllers
            )
    new_id = _new_cluster_id(config)
    unclear = _unclear(config, joins=voter is None and new_id is None)
    ids = [one.node_id for one in config.controller_quorum_voters]
    is_one_of_several = len(ids) > 1 and config.node_id in ids
    return Format(FINALIZED_AT_FORMAT, voter, config.cluster_id, new_id, first, unclear, is_one_of_several)


def _unclear(config: BrokerConfig, *, joins: bool) -> str | None:
    """An error text with the setting that is missing to format an empty directory; None if no setting is missing."""
    if joins and config.cluster_id is None:
        return (
            "this node joins an existing cluster; set kpybroker.cluster.id to its id, which `kpybroker cluster` shows"
        )
    is_default = config.text("kpybroker.initial.controllers") is None
    if (
        not joins
        and is_default
        and not config.controller_quorum_voters
        and len(config.controller_quorum_bootstrap_servers) > 1
    ):
        return (
            "controller.quorum.bootstrap.servers lists several controllers, but does not determine the first voters; "
            "format every node with `kpybroker storage format --cluster-id ID --config FILE --initial-controllers "
            "1@HOST:PORT:DIRECTORY-ID,...`, with the same list on each node, or set "
            "controller.quorum.voters=1@HOST:PORT,... instead; to replace a lost disk, format it with "
            "--no-initial-controllers (docs/runbook.md describes both)"
        )
    return None


def listener_of(config: BrokerConfig) -> tuple[str, str, int] | None:
    """The name of this node's controller listener, and its host and port for other nodes: from controller.quorum.voters
    or else as advertised."""
    for voter in config.controller_quorum_voters:
        if voter.node_id == config.node_id and config.controller_listener_names:
            return config.controller_listener_names[0], voter.host, voter.port
    for endpoint in config.advertised_controller_listeners:
        return endpoint.name, endpoint.host or "127.0.0.1", endpoint.port
    return None


def _new_cluster_id(config: BrokerConfig) -> str | None:
    """The id of a new cluster, derived from its voters so that all of them compute the same id; None if no voters are
    set."""
    named = sorted(
        (one.node_id, one.host, one.port)
        for ones in (config.controller_quorum_voters, config.initial_controllers or ())
        for one in ones
    )
    if not named:
        return None
    seed = sha256(",".join(f"{node_id}@{host}:{port}" for node_id, host, port in named).encode()).digest()
    return encode_id(random_id(Random(int.from_bytes(seed))))
