"""Who votes: controller.quorum.voters (kraft.version 0), or what the log and its snapshots say last (KIP-853).

What a log says holds from the moment it is there, committed or not, and is taken back where the log is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError
from kpybroker.raft.core.state import VotersChanged
from kpybroker.raft.core.voter_set import Voter, VoterSet
from kpybroker.wire.records.snapshot import KRAFT_VERSION, KRAFT_VOTERS, Row, control_record
from kpybroker.wire.stored import quorum as messages

VOTERS = "controller.quorum.voters"


class LoggedVoters(NamedTuple):
    """What a log up to `end` says last; `end` is 0 where only settings have said anything."""

    end: int
    kraft_version: int
    voters: VoterSet


class Voters:
    """The voters of one node's log, and those before them as far as the log may be cut."""

    def __init__(self, config: BrokerConfig, directory_id: bytes, committed: Callable[[], int] = lambda: 0) -> None:
        """`committed` says up to where nothing is taken back any more."""
        self._node_id = config.node_id
        self._directory_id = directory_id
        self._config = config
        self._is_controller = "controller" in config.process_roles
        self._configured = VoterSet.of(
            Voter(voter.node_id, endpoints=tuple((name, voter.host, voter.port) for name in _names(config)))
            for voter in config.controller_quorum_voters
        )
        self._said = [LoggedVoters(0, 0, self._configured)]
        self._committed = committed

    # ---- the log

    def learn(self, control: Iterable[tuple[int, Any]], end: int) -> bool:
        """Take in the control records of a batch, or of a snapshot, that ends at `end`; whether they say who votes."""
        version, voters = self.latest.kraft_version, self.latest.voters
        told = False
        for kind, message in control:
            if kind == KRAFT_VERSION:
                version, told = message.kraft_version, True
            elif kind == KRAFT_VOTERS:
                voters, told = VoterSet.read(message), True
        if told:
            self._said.append(LoggedVoters(end, version, voters))
        return told

    def cut(self, end: int) -> bool:
        """Forget what stood at or behind `end`; whether anything did."""
        known = len(self._said)
        while self._said[-1].end > end:
            self._said.pop()
        return len(self._said) < known

    def begin(self, control: Iterable[tuple[int, Any]], end: int) -> None:
        """A snapshot up to `end` takes the place of the log."""
        self._said = [LoggedVoters(0, 0, self._configured)]
        self.learn(control, end)

    def settle(self, committed: int) -> None:
        """Forget what nothing goes back to: what a snapshot of `committed` says is the oldest that is left."""
        while len(self._said) > 2 and self._said[1].end <= committed:
            del self._said[0]

    # ---- what holds

    @property
    def latest(self) -> LoggedVoters:
        """What holds now."""
        return self._said[-1]

    @property
    def history(self) -> tuple[LoggedVoters, ...]:
        """What held before, as far as it may hold again, and what holds now."""
        return tuple(self._said)

    @property
    def set(self) -> VoterSet:
        """The voters; empty for an observer that knows of none."""
        return self.latest.voters

    @property
    def kraft_version(self) -> int:
        """1 where the log knows its voters (KIP-853)."""
        return self.latest.kraft_version

    @property
    def ids(self) -> tuple[int, ...]:
        """Their node ids, in order."""
        return self.set.ids

    @property
    def are_alone(self) -> bool:
        """This node is the only voter."""
        return self.ids == (self._node_id,) and self._has_me(self.latest)

    @property
    def static(self) -> tuple[int, ...]:
        """The voters of kraft.version 0, for `quorum-state`; empty where the log knows its voters."""
        return () if self.kraft_version else self.ids

    @property
    def change(self) -> VotersChanged:
        """The event that tells `raft.core` of the voters."""
        said = self.latest
        committed = self._committed()
        newest = max((number for number, older in enumerate(self._said) if older.end <= committed), default=0)
        had_me = any(
            self._has_me(older) for older in self._said[newest:]
        )  # what came after the committed ones may go again
        has_me = self._has_me(said)
        is_stranger = self._node_id in said.voters.ids and not has_me
        return VotersChanged(said.voters.ids, said.end, is_stranger, had_me and not has_me)

    def _has_me(self, said: LoggedVoters) -> bool:
        return self.counts(self._node_id, self._directory_id, said)

    def counts(self, node_id: int, directory_id: bytes, said: LoggedVoters | None = None) -> bool:
        """Whether a replica votes: by its id alone where the log does not know the voters' directories."""
        said = said or self.latest
        if not said.kraft_version:
            return node_id in said.voters.ids
        return said.voters.has(node_id, directory_id)

    # ---- start

    @property
    def should_be_in_the_log(self) -> bool:
        """A controller that neither settings nor others tell who votes was formatted with that in a first snapshot."""
        return (
            self._is_controller and not self._configured.voters and not self._config.controller_quorum_bootstrap_servers
        )

    def check(self, path: str) -> None:
        """Raises ConfigError where the log names voters, and this node cannot vote with them as it is set up."""
        if not self.kraft_version or not self._is_controller:
            return
        mine = self.set.get(self._node_id)
        if mine is not None and self.set.ids == (self._node_id,) and not self.are_alone:
            here = Voter(self._node_id, self._directory_id)
            raise ConfigError(
                f"the only voter of {path} is {mine}, and this is {here}: nobody else could ever lead; start it on the "
                "directory that belongs to it"
            )
        configured = self._configured.ids
        if configured and configured != self.ids:
            raise ConfigError(
                f"{VOTERS} names {_listed(configured)}, and the log in {path} has other voters, {self.set}; the log "
                "counts (kraft.version 1): remove the setting and name them in controller.quorum.bootstrap.servers, or "
                "choose an empty directory (log.dirs)"
            )

    def check_static(self, stored: tuple[int, ...], path: str) -> None:
        """Raises ConfigError where the node has voted among others than the settings name now (kraft.version 0)."""
        configured = self._configured.ids
        if stored and configured and not self.kraft_version and tuple(sorted(stored)) != configured:
            raise ConfigError(
                f"{VOTERS} names {_listed(configured)}, and {path} was voting among {_listed(stored)}: two halves "
                "might each elect a leader; set it as it was on every node, and change voters with "
                "kafka-metadata-quorum once kraft.version is 1"
            )

    # ---- saying it again

    def records(self, end: int | None = None) -> list[Row]:
        """The control records that say it again, as of some offset; none for kraft.version 0."""
        said = self.latest
        if end is not None:
            said = next((older for older in reversed(self._said) if older.end <= end), self._said[0])
        return voter_rows(said.kraft_version, said.voters) if said.kraft_version else []


def voter_rows(kraft_version: int, voters: VoterSet) -> list[Row]:
    """Control records of both."""
    version = messages.KRaftVersionRecord(kraft_version=kraft_version)
    return [control_record(KRAFT_VERSION, version), control_record(KRAFT_VOTERS, voters.record())]


def _names(config: BrokerConfig) -> tuple[str, ...]:
    return config.controller_listener_names[:1]


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(str(node_id) for node_id in ids)
