"""Lists all actors in the order in which they start, and chooses the actors that take part in a seed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random

from kpybroker.sim.actors.abandonment import Abandonment
from kpybroker.sim.actors.acks_none import AcksNone
from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.actors.broker_settings import BrokerSettings
from kpybroker.sim.actors.compression import Compression
from kpybroker.sim.actors.consumer_group import SharedGroup
from kpybroker.sim.actors.elections import Elections
from kpybroker.sim.actors.fewer_partitions import FewerPartitions
from kpybroker.sim.actors.log_dirs import LogDirMoves
from kpybroker.sim.actors.new_partitions import PartitionCreation
from kpybroker.sim.actors.principals import Principals
from kpybroker.sim.actors.quotas import Quotas
from kpybroker.sim.actors.racks import Racks
from kpybroker.sim.actors.reassignment import Reassignments
from kpybroker.sim.actors.record_deletion import RecordDeletion
from kpybroker.sim.actors.scheduled_delivery import ScheduledDelivery
from kpybroker.sim.actors.share_groups import ShareGroups
from kpybroker.sim.actors.streams_groups import StreamsGroups
from kpybroker.sim.actors.tables import Tables
from kpybroker.sim.actors.time_lookups import TimeLookups
from kpybroker.sim.actors.topic_recreation import TopicRecreation
from kpybroker.sim.actors.transactions import TransactionClients
from kpybroker.sim.actors.unregistration import Unregistration
from kpybroker.sim.actors.views import Views
from kpybroker.sim.actors.voters import VoterChanges
from kpybroker.sim.cluster.setup import Setup

ACTORS: tuple[type[Actor], ...] = (
    SharedGroup,
    TransactionClients,
    Tables,
    TopicRecreation,
    LogDirMoves,
    VoterChanges,
    Reassignments,
    Racks,
    RecordDeletion,
    TimeLookups,
    Compression,
    AcksNone,
    PartitionCreation,
    Elections,
    BrokerSettings,
    Unregistration,
    Quotas,
    ShareGroups,
    StreamsGroups,
    Principals,
    Abandonment,
    ScheduledDelivery,
    Views,
    FewerPartitions,
)

SHORTER_BY = 0.93
"""Each actor that takes part shortens the time with faults by this factor, so that the seed does not need more CPU
time."""


def with_actors(setup: Setup, wanted: Collection[str] = (), *, only: bool = False) -> Setup:
    """The setup with its actors: the drawn ones, each with its own Random, and those in `wanted`. With `only`, only
    those in `wanted`."""
    for actor in ACTORS:
        random = Random(f"{actor.name} {setup.seed} {len(setup.nodes)}")
        drawn = random.random() < actor.odds and not only
        if actor.name and actor.suits(setup) and (drawn or actor.name in wanted):
            setup = replace(actor.draw(setup, random), actors=(*setup.actors, actor.name))
    if not only:
        setup = replace(setup, trouble_s=setup.trouble_s * SHORTER_BY ** len(setup.actors))
    return setup


def actor_names() -> list[str]:
    """The names that `--actors` accepts."""
    return [actor.name for actor in ACTORS if actor.name]
