"""Who votes: controller.quorum.voters (kraft.version 0), or what the log and its snapshots say (KIP-853)."""

from __future__ import annotations

from typing import Any

from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError
from kpybroker.storage.formatting import encode_id
from kpybroker.wire.snapshot import KRAFT_VERSION, KRAFT_VOTERS, Row, control_record
from kpybroker.wire.stored import quorum as messages


class Voters:
    """The voters of one node's log."""

    def __init__(self, config: BrokerConfig, directory_id: bytes) -> None:
        self._node_id = config.node_id
        self._directory_id = directory_id
        self._is_controller = "controller" in config.process_roles
        self._configured = tuple(voter.node_id for voter in config.controller_quorum_voters)
        self._kraft_version = 0
        self._recorded: messages.VotersRecord | None = None

    def learn(self, control: list[tuple[int, Any]]) -> None:
        """Take in control records: type and message."""
        for kind, message in control:
            if kind == KRAFT_VERSION:
                self._kraft_version = message.kraft_version
            elif kind == KRAFT_VOTERS:
                self._recorded = message

    @property
    def kraft_version(self) -> int:
        """1 where the log knows its voters (KIP-853)."""
        return self._kraft_version

    @property
    def should_be_in_the_log(self) -> bool:
        """A controller without controller.quorum.voters was formatted with its voters in the first snapshot."""
        return self._is_controller and not self._configured

    @property
    def ids(self) -> tuple[int, ...]:
        """Their node ids, in order; empty for an observer that knows of none."""
        if self._configured:
            return tuple(sorted(self._configured))
        if self._is_controller:
            return (self._node_id,)
        return tuple(voter.voter_id for voter in self._recorded.voters) if self._recorded is not None else ()

    @property
    def are_alone(self) -> bool:
        """This node is the only voter."""
        return self.ids == (self._node_id,)

    @property
    def static(self) -> tuple[int, ...]:
        """The voters of kraft.version 0, for `quorum-state`; empty where the log knows its voters."""
        return () if self._kraft_version else self.ids

    def check(self, path: str) -> None:
        """Raises ConfigError where the log names voters, and they are not those that this node is to vote with."""
        if self._recorded is None or not self._is_controller:
            return
        found = [(voter.voter_id, encode_id(voter.voter_directory_id)) for voter in self._recorded.voters]
        here = (self._node_id, encode_id(self._directory_id))
        shown = ", ".join(f"{node}-{directory}" for node, directory in found)
        if found != [here]:
            raise ConfigError(
                f"the voters of {path} are {shown}, and this is {here[0]}-{here[1]}; where the log names the voters "
                "this version serves a quorum of one: start it on the directory that belongs to it"
            )
        if not self.are_alone:
            raise ConfigError(
                f"controller.quorum.voters names {len(self.ids)} voters, and the log in {path} names one, {shown}: it "
                "was made for a quorum of one; choose an empty directory (log.dirs), or remove the setting"
            )

    def records(self) -> list[Row]:
        """The control records that say it again; none for kraft.version 0."""
        if self._recorded is None:
            return []
        version = messages.KRaftVersionRecord(kraft_version=self._kraft_version)
        return [control_record(KRAFT_VERSION, version), control_record(KRAFT_VOTERS, self._recorded)]
