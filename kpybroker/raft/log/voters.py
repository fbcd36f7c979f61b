"""Keeps the voters: those in controller.quorum.voters (kraft.version 0), or the latest ones in the log (KIP-853).

A set of voters takes effect as soon as its record is in the log, committed or not. If the record is truncated, the
previous set takes effect again.
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
    """A set of voters in a log, with the end offset of its batch or snapshot. `end` is 0 for voters from the
    settings."""

    end: int
    kraft_version: int
    voters: VoterSet


class Voters:
    """The voters in one node's log, and the earlier voters that a truncation may restore."""

    def __init__(self, config: BrokerConfig, directory_id: bytes, committed: Callable[[], int] = lambda: 0) -> None:
        """`committed` returns the high watermark. Records below it are never truncated."""
        self._node_id = config.node_id
        self._directory_id = directory_id
        self._config = config
        self._is_controller = "controller" in config.process_roles
        self._configured = VoterSet.of(
            Voter(voter.node_id, endpoints=tuple((name, voter.host, voter.port) for name in _names(config)))
            for voter in config.controller_quorum_voters
        )
        self._history = [LoggedVoters(0, 0, self._configured)]
        self._committed = committed

    # ---- the log

    def learn(self, control: Iterable[tuple[int, Any]], end: int) -> bool:
        """Read the control records of a batch or snapshot that ends at `end`. Returns whether they change the
        voters."""
        version, voters = self.latest.kraft_version, self.latest.voters
        told = False
        for kind, message in control:
            if kind == KRAFT_VERSION:
                version, told = message.kraft_version, True
            elif kind == KRAFT_VOTERS:
                voters, told = VoterSet.read(message), True
        if told:
            self._history.append(LoggedVoters(end, version, voters))
        return told

    def cut(self, end: int) -> bool:
        """Restore the voters of a log that was truncated to `end`. Returns whether this changes the voters."""
        known = len(self._history)
        while self._history[-1].end > end:
            self._history.pop()
        return len(self._history) < known

    def begin(self, control: Iterable[tuple[int, Any]], end: int) -> None:
        """Adopt the voters of a snapshot up to `end`, which has replaced the log."""
        self._history = [LoggedVoters(0, 0, self._configured)]
        self.learn(control, end)

    def settle(self, committed: int) -> None:
        """Forget voters that no truncation can restore. `committed` is the end of a snapshot."""
        while len(self._history) > 2 and self._history[1].end <= committed:
            del self._history[0]

    # ---- the voters

    @property
    def latest(self) -> LoggedVoters:
        """The latest voters."""
        return self._history[-1]

    @property
    def history(self) -> tuple[LoggedVoters, ...]:
        """The voters that a truncation may restore, followed by the latest voters."""
        return tuple(self._history)

    @property
    def set(self) -> VoterSet:
        """The latest set of voters; empty for an observer that does not know them yet."""
        return self.latest.voters

    @property
    def kraft_version(self) -> int:
        """The kraft.version: 1 if the log contains the voters (KIP-853), else 0."""
        return self.latest.kraft_version

    @property
    def ids(self) -> tuple[int, ...]:
        """The node ids of the latest voters, in ascending order."""
        return self.set.ids

    @property
    def are_alone(self) -> bool:
        """Whether this node is the only voter."""
        return self.ids == (self._node_id,) and self._has_me(self.latest)

    @property
    def static(self) -> tuple[int, ...]:
        """The voters of kraft.version 0, for `quorum-state`; empty if the log contains the voters."""
        return () if self.kraft_version else self.ids

    @property
    def change(self) -> VotersChanged:
        """The event that passes the latest voters to `raft.core`."""
        latest = self.latest
        committed = self._committed()
        newest = max((number for number, older in enumerate(self._history) if older.end <= committed), default=0)
        had_me = any(self._has_me(older) for older in self._history[newest:])  # later sets of voters may be truncated
        has_me = self._has_me(latest)
        is_stranger = self._node_id in latest.voters.ids and not has_me
        return VotersChanged(latest.voters.ids, latest.end, is_stranger, had_me and not has_me)

    def _has_me(self, said: LoggedVoters) -> bool:
        return self.counts(self._node_id, self._directory_id, said)

    def counts(self, node_id: int, directory_id: bytes, said: LoggedVoters | None = None) -> bool:
        """Whether a replica is a voter. At kraft.version 0 this depends only on its id."""
        said = said or self.latest
        if not said.kraft_version:
            return node_id in said.voters.ids
        return said.voters.has(node_id, directory_id)

    # ---- start

    @property
    def should_be_in_the_log(self) -> bool:
        """Whether the log must contain the voters, because this controller has neither a setting for them nor other
        nodes to query."""
        return (
            self._is_controller and not self._configured.voters and not self._config.controller_quorum_bootstrap_servers
        )

    def check(self, path: str) -> None:
        """Raises ConfigError if the voters in the log contradict this node's settings or directory."""
        if not self.kraft_version or not self._is_controller:
            return
        mine = self.set.get(self._node_id)
        if mine is not None and self.set.ids == (self._node_id,) and not self.are_alone:
            here = Voter(self._node_id, self._directory_id)
            raise ConfigError(
                f"the only voter in {path} is {mine}, but this node is {here}, so no node could ever lead; start the "
                "node on its own directory"
            )
        configured = self._configured.ids
        if configured and configured != self.ids:
            raise ConfigError(
                f"{VOTERS} lists {_listed(configured)}, but the voters in the log in {path} are {self.set}. With "
                "kraft.version 1 the log takes precedence: remove the setting and list the voters in "
                "controller.quorum.bootstrap.servers, or choose an empty directory (log.dirs)"
            )

    def check_static(self, stored: tuple[int, ...], path: str) -> None:
        """Raises ConfigError if the voters in quorum-state differ from those in the settings (kraft.version 0)."""
        configured = self._configured.ids
        if stored and configured and not self.kraft_version and tuple(sorted(stored)) != configured:
            raise ConfigError(
                f"{VOTERS} lists {_listed(configured)}, but {path} has the voters {_listed(stored)}. With different "
                "voters, two parts of the quorum might each elect a leader: restore the setting on every node, and "
                "change voters with kafka-metadata-quorum once kraft.version is 1"
            )

    # ---- records

    def records(self, end: int | None = None) -> list[Row]:
        """The control records for the voters at an offset, for a snapshot. There are none at kraft.version 0."""
        known = self.latest
        if end is not None:
            known = next((older for older in reversed(self._history) if older.end <= end), self._history[0])
        return voter_rows(known.kraft_version, known.voters) if known.kraft_version else []


def voter_rows(kraft_version: int, voters: VoterSet) -> list[Row]:
    """The control records that set kraft.version and the voters."""
    version = messages.KRaftVersionRecord(kraft_version=kraft_version)
    return [control_record(KRAFT_VERSION, version), control_record(KRAFT_VOTERS, voters.record())]


def _names(config: BrokerConfig) -> tuple[str, ...]:
    return config.controller_listener_names[:1]


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(str(node_id) for node_id in ids)
