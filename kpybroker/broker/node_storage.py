"""The directories of one node for the metadata log and for partitions. They are locked while the node runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kpybroker.broker.log_recovery import LogRecovery
from kpybroker.config import BrokerConfig
from kpybroker.storage.dirs.cleaner import Cleaner
from kpybroker.storage.dirs.directory import Directory
from kpybroker.storage.dirs.disk_watch import DiskWatch
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.world import World


class NodeStorage:
    """The locked directories, of which the first contains the metadata log, and the logs in log.dirs.

    `config` returns the current settings. `on_disk_change` is called when a disk hangs, and when it responds again.
    """

    def __init__(
        self,
        world: World,
        config: Callable[[], BrokerConfig],
        directories: Sequence[Directory],
        log_dirs: LogDirectories,
        on_disk_change: Callable[[], None],
    ) -> None:
        self._disk = world.disk
        self.directories = directories
        self.cluster_id = directories[0].cluster_id
        self.log_dirs = log_dirs
        self.recovery = LogRecovery(world)
        self.cleaner = Cleaner(world, log_dirs, config)
        self.disk_watch = DiskWatch(
            world,
            [each.path for each in directories],
            config().broker_session_timeout_ms,
            on_disk_change,
            out=log_dirs.offline,
        )

    async def close(self) -> None:
        """Write everything, leave the marker of a clean shutdown, and release the locks."""
        await self.log_dirs.close()
        for directory in self.directories:
            self._disk.close(directory.lock)
