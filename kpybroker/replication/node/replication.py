"""Creates the parts of replication on one node."""

from __future__ import annotations

from collections.abc import Callable

from kpybroker.client.dialer import broker_dialer
from kpybroker.config import BrokerConfig
from kpybroker.metadata.image import Image
from kpybroker.replication.follower.context import FetcherContext
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.replication.node.directory_reports import DirectoryReports
from kpybroker.replication.node.isr_proposals import IsrProposals
from kpybroker.replication.node.replica_moves import ReplicaMoves
from kpybroker.replication.node.replicas import ReplicaCallbacks, Replicas
from kpybroker.replication.partition.flush_queue import FlushQueue
from kpybroker.replication.partition.hosting import Hosting
from kpybroker.replication.partition.partition_events import PartitionEvents
from kpybroker.replication.partition.replica_rules import ReplicaRules
from kpybroker.replication.partition.sessions import FetchSessions
from kpybroker.replication.partition.stretches import Stretches
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.storage.log.slices import Places
from kpybroker.world import World

SCANS_AT_ONCE = 8
"""How many chunks of the sources of views are searched concurrently, each of which is in memory during this time."""


class Replication:
    """The flush queue, the hosted partitions, fetch sessions, what reads of views share, and the replicas that follow
    the metadata.

    channel: the channel to the active controller. config, epoch, image: return the broker's current settings, epoch and
    Image.
    """

    def __init__(
        self,
        world: World,
        log_dirs: LogDirectories,
        channel: ControllerChannel,
        config: Callable[[], BrokerConfig],
        epoch: Callable[[], int],
        image: Callable[[], Image],
        callbacks: ReplicaCallbacks,
    ) -> None:
        node_id = config().node_id
        self.rules = rules = ReplicaRules.of(config(), image)
        self.flush_queue = FlushQueue()
        proposals = IsrProposals(channel, node_id, epoch)
        self.hosting = Hosting(rules, self.flush_queue, PartitionEvents(proposals.propose))
        dialer = broker_dialer(world, config)
        slots = config().max_incremental_fetch_session_cache_slots
        self.sessions = FetchSessions(world.random, slots, rules.now_ms)
        self.scans = Places(SCANS_AT_ONCE)
        """The places for searches in the sources of views."""
        self.stretches = Stretches()
        context = FetcherContext(dialer, node_id, config, epoch, image, self.hosting.following_throttle)
        reports = DirectoryReports(channel, node_id, epoch)
        moves = ReplicaMoves(world, self.hosting, log_dirs, reports, image)
        self.replicas = Replicas(
            self.hosting, self.flush_queue, log_dirs, context, proposals, reports, callbacks, moves
        )
