"""Handles the election requests of other voters: Vote, BeginQuorumEpoch, EndQuorumEpoch (KIP-595, KIP-853, KIP-996)."""

from __future__ import annotations

from typing import Any

from kpybroker.errors import ErrorCode
from kpybroker.raft.core import state as raft
from kpybroker.raft.core.state import Tail
from kpybroker.raft.core.voter_set import NO_DIRECTORY
from kpybroker.raft.driver import Driver
from kpybroker.raft.duties.bootstrap import BootstrapCheck
from kpybroker.raft.duties.request_checks import leader_endpoints, only_partition
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc import begin_quorum_epoch, end_quorum_epoch, vote

EPOCHS_AHEAD_MAX = 1_000_000
EPOCHS_BY_ONE = 2**30
"""An epoch that real elections never reach. From this epoch on, a request may be at most one epoch ahead, so that no
client can use up the remaining epochs."""


class ElectionRpcs:
    """Handles the requests of other voters. Every method raises KafkaError if it refuses the whole request."""

    def __init__(self, driver: Driver, bootstrap: BootstrapCheck) -> None:
        self._driver = driver
        self._bootstrap = bootstrap

    def answer_vote(self, request: vote.Request) -> vote.Response:
        """Grant or refuse a vote. A granted vote is on disk when this returns."""
        driver = self._driver
        asked = only_partition(driver, request)
        if not self._is_for_this_node(request.voter_id, asked.voter_directory_id):
            return self._voted(granted=False, error=ErrorCode.INVALID_VOTER_KEY)
        newest_epoch = asked.replica_epoch - (0 if asked.pre_vote else 1)  # a candidate's own epoch has no records yet
        if not 0 <= asked.last_offset_epoch <= newest_epoch or asked.last_offset < 0 or self._is_absurd(newest_epoch):
            return self._voted(granted=False, error=ErrorCode.INVALID_REQUEST)
        if asked.replica_epoch < driver.epoch:
            return self._voted(granted=False, error=ErrorCode.FENCED_LEADER_EPOCH)
        known = driver.state.voters
        if not driver.kraft_version and not {driver.identity.node_id, asked.replica_id} <= set(known):
            return self._voted(granted=False)  # with kraft.version 1, this node's log may not contain all voters yet
        tail = Tail(asked.last_offset_epoch, asked.last_offset)
        directory = b"" if asked.replica_directory_id == NO_DIRECTORY else asked.replica_directory_id
        granted = driver.step(raft.VoteAsked(asked.replica_id, asked.replica_epoch, tail, asked.pre_vote, directory))
        if not granted and not driver.state.may_elect(tail):
            driver.new_voter.refused(asked.replica_id)
        return self._voted(granted=bool(granted))

    def begin_epoch(self, request: begin_quorum_epoch.Request) -> begin_quorum_epoch.Response:
        """Follow the leader that sent this request, unless this node knows a later leader."""
        row = only_partition(self._driver, request)
        if not self._is_for_this_node(request.voter_id, row.voter_directory_id):
            refused: begin_quorum_epoch.Response = self._acknowledged(begin_quorum_epoch, ErrorCode.INVALID_VOTER_KEY)
            return refused
        error = self._check_leader_of(row)
        if not error:
            self._learn(request, row.leader_id)
            self._driver.step(raft.BeginAsked(row.leader_id, row.leader_epoch))
        answer: begin_quorum_epoch.Response = self._acknowledged(begin_quorum_epoch, error)
        return answer

    def end_epoch(self, request: end_quorum_epoch.Request) -> end_quorum_epoch.Response:
        """Start an election, because the leader that sent this request has resigned."""
        row = only_partition(self._driver, request)
        error = self._check_leader_of(row)
        if not error:
            self._learn(request, row.leader_id)
            named = [candidate.candidate_id for candidate in row.preferred_candidates]
            successors = tuple(named or row.preferred_successors)
            self._driver.step(raft.EndAsked(row.leader_id, row.leader_epoch, successors))
        answer: end_quorum_epoch.Response = self._acknowledged(end_quorum_epoch, error)
        return answer

    def _is_for_this_node(self, node_id: int, directory_id: bytes) -> bool:
        """Whether a request is for this node and its directory. Requests of versions before KIP-853 contain neither."""
        me = self._driver.identity
        if directory_id not in (NO_DIRECTORY, me.directory_id):
            self._bootstrap.check_again()
            return False
        return node_id in (-1, me.node_id)

    def _is_absurd(self, epoch: int) -> bool:
        """Whether an epoch is too far ahead to be real. Each election adds one, and a forged epoch must not use up the
        remaining ones."""
        ahead = epoch - self._driver.epoch
        return ahead > (EPOCHS_AHEAD_MAX if epoch < EPOCHS_BY_ONE else 1)

    def _check_leader_of(self, row: Any) -> ErrorCode:
        """The error for the leader and epoch in a request; NONE if they may be correct."""
        state = self._driver.state
        if row.leader_epoch < state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if self._is_absurd(row.leader_epoch):
            return ErrorCode.INVALID_REQUEST
        if not self._driver.kraft_version and row.leader_id not in state.voters:
            return ErrorCode.INCONSISTENT_VOTER_SET
        known = self._driver.leader_id
        if row.leader_epoch == state.epoch and known not in (raft.NOBODY, row.leader_id):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _learn(self, request: Any, leader_id: int) -> None:
        wanted = self._driver.config.controller_listener_names
        for endpoint in request.leader_endpoints:
            if endpoint.name in wanted:
                self._driver.addresses.learn([(leader_id, endpoint.host, endpoint.port)])

    def _voted(self, *, granted: bool, error: ErrorCode = ErrorCode.NONE) -> vote.Response:
        row = vote.PartitionDataReply(
            error_code=error, leader_id=self._driver.leader_id, leader_epoch=self._driver.epoch, vote_granted=granted
        )
        return vote.Response(
            topics=[vote.TopicDataReply(topic_name=METADATA_TOPIC, partitions=[row])],
            node_endpoints=leader_endpoints(self._driver, vote.NodeEndpoint),
        )

    def _acknowledged(self, messages: Any, error: ErrorCode) -> Any:
        row = messages.PartitionDataReply(
            error_code=error, leader_id=self._driver.leader_id, leader_epoch=self._driver.epoch
        )
        return messages.Response(
            topics=[messages.TopicDataReply(topic_name=METADATA_TOPIC, partitions=[row])],
            node_endpoints=leader_endpoints(self._driver, messages.NodeEndpoint),
        )
