"""An immutable set of voters (KIP-853), with their ids, directories, listeners and supported kraft.versions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kpybroker.storage.dirs.formatting import encode_id
from kpybroker.wire.stored import quorum as messages

NO_DIRECTORY = bytes(16)
KRAFT_VERSIONS = (0, 1)
"""The range of kraft.version that this node supports."""

Endpoint = tuple[str, str, int]
"""Listener name, host, port."""


class Voter(NamedTuple):
    """One voter. A voter with the same id and another directory is a different voter."""

    node_id: int
    directory_id: bytes = NO_DIRECTORY
    endpoints: tuple[Endpoint, ...] = ()
    versions: tuple[int, int] = KRAFT_VERSIONS

    @property
    def key(self) -> tuple[int, bytes]:
        """Node id and directory id."""
        return self.node_id, self.directory_id

    def listens(self, names: Iterable[str]) -> tuple[str, int] | None:
        """Host and port of the voter's first listener with one of these names; None if it has no such listener."""
        known = {name: (host, port) for name, host, port in self.endpoints}
        return next((known[name] for name in names if name in known), None)

    def __str__(self) -> str:
        return f"{self.node_id}-{encode_id(self.directory_id)}"


class VoterSet(NamedTuple):
    """Voters, ordered by node id. Each id occurs once."""

    voters: tuple[Voter, ...] = ()

    @classmethod
    def of(cls, voters: Iterable[Voter]) -> VoterSet:
        """The set of these voters."""
        return cls(tuple(sorted(voters, key=lambda voter: voter.node_id)))

    @classmethod
    def read(cls, record: messages.VotersRecord) -> VoterSet:
        """The voters in a record."""
        return cls.of(
            Voter(
                row.voter_id,
                row.voter_directory_id,
                tuple((endpoint.name, endpoint.host, endpoint.port) for endpoint in row.endpoints),
                (row.kraft_version_feature.min_supported_version, row.kraft_version_feature.max_supported_version),
            )
            for row in record.voters
        )

    def record(self) -> messages.VotersRecord:
        """The record for these voters."""
        return messages.VotersRecord(
            voters=[
                messages.RegisteredVoter(
                    voter_id=voter.node_id,
                    voter_directory_id=voter.directory_id,
                    endpoints=[
                        messages.Endpoint(name=name, host=host, port=port) for name, host, port in voter.endpoints
                    ],
                    kraft_version_feature=messages.KRaftVersionFeature(
                        min_supported_version=voter.versions[0], max_supported_version=voter.versions[1]
                    ),
                )
                for voter in self.voters
            ]
        )

    @property
    def ids(self) -> tuple[int, ...]:
        """The node ids of the voters, in ascending order."""
        return tuple(voter.node_id for voter in self.voters)

    def get(self, node_id: int) -> Voter | None:
        """The voter with this id, regardless of its directory."""
        return next((voter for voter in self.voters if voter.node_id == node_id), None)

    def has(self, node_id: int, directory_id: bytes) -> bool:
        """Whether the node with this id and directory is a voter."""
        return any(voter.key == (node_id, directory_id) for voter in self.voters)

    def with_voter(self, voter: Voter) -> VoterSet:
        """The set with a voter added, or replaced."""
        return VoterSet.of([*(other for other in self.voters if other.node_id != voter.node_id), voter])

    def without(self, node_id: int) -> VoterSet:
        """The set with a voter removed."""
        return VoterSet(tuple(voter for voter in self.voters if voter.node_id != node_id))

    def __str__(self) -> str:
        return ", ".join(str(voter) for voter in self.voters)
