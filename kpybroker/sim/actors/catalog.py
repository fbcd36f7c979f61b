"""All actors, in the order in which they start, and those of a seed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random

from kpybroker.sim.actors.abandonment import Abandonment
from kpybroker.sim.actors.acks_none import AcksNone
from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.actors.broker_settings import BrokerSettings
from kpybroker.sim.actors.compression import Compression
from kpybroker.sim.actors.consumer_group import ConsumerGroup
from kpybroker.sim.actors.elections import Elections
from kpybroker.sim.actors.log_dirs import LogDirMoves
from kpybroker.sim.actors.new_partitions import NewPartitions
from kpybroker.sim.actors.quotas import Quotas
from kpybroker.sim.actors.racks import Racks
from kpybroker.sim.actors.reassignment import Reassignments
from kpybroker.sim.actors.record_deletion import RecordDeletion
from kpybroker.sim.actors.tables import Tables
from kpybroker.sim.actors.time_lookups import TimeLookups
from kpybroker.sim.actors.topics_made_again import TopicsMadeAgain
from kpybroker.sim.actors.transactions import Transactions
from kpybroker.sim.actors.unregistration import Unregistration
from kpybroker.sim.actors.voters import VoterChanges
from kpybroker.sim.cluster.setup import Setup

ACTORS: tuple[type[Actor], ...] = (
    ConsumerGroup,
    Transactions,
    Tables,
    TopicsMadeAgain,
    LogDirMoves,
    VoterChanges,
    Reassignments,
    Racks,
    RecordDeletion,
    TimeLookups,
    Compression,
    AcksNone,
    NewPartitions,
    Elections,
    BrokerSettings,
    Unregistration,
    Quotas,
    Abandonment,
)

SHORTER_BY = 0.93
"""Each that takes part makes the time of trouble so much shorter: a seed is not to cost more for it."""


def with_actors(setup: Setup, wanted: Collection[str] = (), *, only: bool = False) -> Setup:
    """The setup with the actors of its seed: those that it draws, each by a chance of its own, and those that are
    wanted; with `only`, those that are wanted."""
    for actor in ACTORS:
        random = Random(f"{actor.name} {setup.seed} {len(setup.nodes)}")
        drawn = random.random() < actor.odds and not only
        if actor.name and actor.suits(setup) and (drawn or actor.name in wanted):
            setup = replace(actor.draw(setup, random), actors=(*setup.actors, actor.name))
    if not only:
        setup = replace(setup, trouble_s=setup.trouble_s * SHORTER_BY ** len(setup.actors))
    return setup


def actor_names() -> list[str]:
    """Those that can be wanted."""
    return [actor.name for actor in ACTORS if actor.name]
