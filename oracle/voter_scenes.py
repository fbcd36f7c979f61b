"""Scenes of voter changes (KIP-853), sent to the only voter of a quorum."""

from collections.abc import Callable
from typing import Any

from kpybroker.wire.rpc import add_raft_voter, describe_cluster, remove_raft_voter, update_raft_voter
from oracle.requests import versions

Ask = Callable[..., Any]
"""ask(name, version, request, note="") -> response; recorded if there is a note"""

VOTER = 1
STRANGER = 9
A_DIRECTORY = bytes(range(16))
OTHER_CLUSTER = "x" * 22
NOBODY_LISTENS = 1
"""A port without a listener."""


class VoterScenes:
    """`ask` sends to the broker listener, `ask_controller` to the controller listener of the same node."""

    def __init__(self, ask: Ask, ask_controller: Ask) -> None:
        self.ask = ask
        self.ask_controller = ask_controller
        self.cluster_id = ""

    def all(self) -> None:
        self.cluster_id = self.ask("DescribeCluster", 0, describe_cluster.Request()).cluster_id
        self.additions()
        self.removals()
        self.updates()

    def additions(self) -> None:
        rpc = add_raft_voter

        def asked(**facts: Any) -> Any:
            listener = rpc.Listener(name=facts.pop("listener", "CONTROLLER"), host="127.0.0.1", port=NOBODY_LISTENS)
            known = {"cluster_id": self.cluster_id, "voter_id": STRANGER, "voter_directory_id": A_DIRECTORY}
            return rpc.Request(timeout_ms=1000, listeners=[listener], **{**known, **facts})

        for version in versions("AddRaftVoter"):
            for note, request in {
                "to another cluster": asked(cluster_id=OTHER_CLUSTER),
                "without a cluster id": asked(cluster_id=None),
                "of no id": asked(voter_id=-1),
                "without the listener of controllers": asked(listener="OTHER"),
                "of a voter": asked(voter_id=VOTER),
                "that nobody hears": asked(),
            }.items():
                self.ask("AddRaftVoter", version, request, note)

    def removals(self) -> None:
        rpc = remove_raft_voter
        for note, facts in {
            "from another cluster": {"cluster_id": OTHER_CLUSTER, "voter_id": STRANGER},
            "of no id": {"cluster_id": self.cluster_id, "voter_id": -1},
            "of no voter": {"cluster_id": self.cluster_id, "voter_id": STRANGER},
            "of another directory": {"cluster_id": self.cluster_id, "voter_id": VOTER},
        }.items():
            self.ask("RemoveRaftVoter", 0, rpc.Request(voter_directory_id=A_DIRECTORY, **facts), note)

    def updates(self) -> None:
        rpc = update_raft_voter

        def asked(**facts: Any) -> Any:
            listener = rpc.Listener(name=facts.pop("listener", "CONTROLLER"), host="127.0.0.1", port=NOBODY_LISTENS)
            known = {"cluster_id": self.cluster_id, "voter_id": VOTER, "voter_directory_id": A_DIRECTORY}
            known |= {
                "current_leader_epoch": 1,
                "kraft_version_feature": facts.pop(
                    "feature", rpc.KRaftVersionFeature(min_supported_version=0, max_supported_version=1)
                ),
            }
            return rpc.Request(listeners=[listener], **{**known, **facts})

        for note, request in {
            "in another cluster": asked(cluster_id=OTHER_CLUSTER),
            "of a past epoch": asked(current_leader_epoch=0),
            "of a future epoch": asked(current_leader_epoch=99),
            "of no id": asked(voter_id=-1),
            "of a stranger": asked(voter_id=STRANGER),
            "of another directory": asked(),
            "without the listener of controllers": asked(listener="OTHER"),
            "with a minimum version above the maximum": asked(
                feature=rpc.KRaftVersionFeature(min_supported_version=1, max_supported_version=0)
            ),
        }.items():
            self.ask_controller("UpdateRaftVoter", 0, request, note)
