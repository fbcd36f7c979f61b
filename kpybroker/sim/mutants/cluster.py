"""Mutants with bugs in replication, the quorum and the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpybroker.raft import driver
from kpybroker.raft.core.core import step
from kpybroker.raft.core.state import NOBODY, State, VoteAsked, Voted
from kpybroker.raft.core.voter_set import VoterSet
from kpybroker.raft.log.quorum_state import write_quorum_state
from kpybroker.raft.log.replay import PendingBatch, Replay
from kpybroker.replication.partition.followers import Followers
from kpybroker.replication.partition.partition import Partition
from kpybroker.serving.fetch import replica
from kpybroker.serving.produce import append, reply
from kpybroker.sim.mutants.mutant import Mutant, Patch, force
from kpybroker.storage.files.epochs import LeaderEpochs
from kpybroker.world import World

NODES = ("crash", "pause", "partition", "one_way", "isolate")
OUT_OF_REACH = ("isolate", "partition", "one_way")


def _agreed_with_oneself(_: Followers, own_end: int, *__: Any) -> int:
    return own_end


def _parts_nowhere(*_: Any) -> None:
    """Never return a diverging epoch from the leader."""


def _forgets_odd_epochs(assign: Callable[..., None]) -> Callable[..., None]:
    def forgetful(epochs: LeaderEpochs, epoch: int, start: int, *, save: bool = True) -> None:
        if epoch % 2 == 0:
            assign(epochs, epoch, start, save=save)

    return forgetful


def _votes_for_everybody(step: Callable[..., Any]) -> Callable[..., Any]:
    def generous(state: State, event: Any, *rest: Any) -> Any:
        if isinstance(event, VoteAsked) and event.epoch == state.epoch and not event.is_pre_vote:
            state = state._replace(voted=Voted(state.epoch, NOBODY, NOBODY))
        return step(state, event, *rest)

    return generous


def _in_sync_by_itself(partition: Partition, followers: Followers, isr: tuple[int, ...] | None) -> None:
    if isr is not None:
        force(partition, isr=isr)
        force(followers, isr=isr)


def _commits_at_once(appended: Callable[[Replay, PendingBatch], None]) -> Callable[[Replay, PendingBatch], None]:
    def rash(replay: Replay, pending: PendingBatch) -> None:
        appended(replay, pending)
        replay.commit(pending.end)

    return rash


class _CarelessDisk:
    """A disk whose blocking syncs do nothing."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def sync_blocking(self, _: int) -> None:
        return

    def sync_directory_blocking(self, _: str) -> None:
        return


class _CarelessWorld:
    def __init__(self, world: World) -> None:
        self.disk = _CarelessDisk(world.disk)


def _writes_the_vote_carelessly(world: Any, *rest: Any) -> None:
    write_quorum_state(_CarelessWorld(world), *rest)  # type: ignore[arg-type]


def _without_two(voters: VoterSet, node_id: int) -> VoterSet:
    return VoterSet(tuple(voter for voter in voters.voters if voter.node_id != node_id)[:1])


THREE_BROKERS = (
    Mutant(
        "acks=all is acknowledged before followers have the records",
        (Patch(append, "ACKS_ALL", -99), Patch(reply, "ACKS_ALL", -99)),
        NODES,
        brokers=3,
    ),
    Mutant(
        "the high watermark does not wait for the in-sync replicas",
        (Patch(Followers, "agreed_end", _agreed_with_oneself),),
        NODES,
        brokers=3,
    ),
    Mutant("followers do not truncate", (Patch(replica, "parted", _parts_nowhere),), NODES, brokers=3),
    Mutant(
        "leader epochs are not stored",
        (Patch(LeaderEpochs, "assign", _forgets_odd_epochs(LeaderEpochs.assign)),),
        NODES,
        brokers=3,
    ),
    Mutant("a voter votes twice", (Patch(driver, "step", _votes_for_everybody(step)),), NODES, brokers=3),
    Mutant(
        "leaders change their ISR without the controller",
        (Patch(Partition, "_propose", _in_sync_by_itself),),
        NODES,
        brokers=3,
    ),
    Mutant(
        "an Image is published beyond the quorum's high watermark",
        (Patch(Replay, "appended", _commits_at_once(Replay.appended)),),
        OUT_OF_REACH,
        brokers=3,
    ),
    Mutant(
        "the fsync of a vote is lost",
        (Patch(driver, "write_quorum_state", _writes_the_vote_carelessly),),
        ("power_loss", "partition", "isolate"),
        brokers=3,
    ),
    Mutant("two voters are removed at once", (Patch(VoterSet, "without", _without_two),), OUT_OF_REACH, brokers=3),
)
