"""The log cleaner. It cleans one log at a time, the dirtiest first, and pauses when no log needs cleaning."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from kpybroker.config import BrokerConfig
from kpybroker.errors import Damage, KafkaError
from kpybroker.storage.compaction.candidates import Dirty, look, outgrows_replay
from kpybroker.storage.compaction.cleaning import Abandoned, Cleaning, Limits
from kpybroker.storage.dirs.log_dir import LogDirectory
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.storage.log.log import Log
from kpybroker.topics import TopicPartition
from kpybroker.world import World

log = logging.getLogger(__name__)

RETRY_S = 300.0
"""The time after which a failed cleaning is retried, for example if the disk is full or a batch is damaged. The log is
served in the meantime."""
MAP_BYTES_MAX = (1 << 31) - 1
"""Kafka's limit on log.cleaner.dedupe.buffer.size."""
READ_BYTES_MAX = 8 << 20
"""The upper limit for log.cleaner.io.buffer.size. A larger batch is read as a whole."""
REST_AT_ONCE_S = 15.0
"""A change of log.cleaner.backoff.ms takes effect within this time."""
_LOOKED_AT_ONCE = 50


class Cleaner:
    """Cleans the logs of one or several directories, according to the current settings."""

    def __init__(
        self, world: World, directory: LogDirectory | LogDirectories, config: Callable[[], BrokerConfig]
    ) -> None:
        self._world = world
        self._directory = directory
        self._config = config
        self._not_before: dict[TopicPartition, float] = {}
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Clean logs until cancelled."""
        while True:
            if not self._config().log_cleaner_enable or not await self.clean_dirtiest():
                await self._rest()

    async def _rest(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        left_s = max(self._config().log_cleaner_backoff_ms, 1) / 1000
        while left_s >= 0.001:
            await asyncio.sleep(min(left_s, REST_AT_ONCE_S))
            left_s = began + self._config().log_cleaner_backoff_ms / 1000 - loop.time()

    async def clean_all(self) -> None:
        """Clean all logs that need cleaning now."""
        while await self.clean_dirtiest():
            pass

    async def clean_now(self, logs: Iterable[Log]) -> None:
        """Roll and clean these logs, whatever their share of dirty bytes is. Raises Damage, or KafkaError if that is
        not possible at the moment."""
        async with self._one_at_a_time:
            for one in logs:
                if one.settings.compacted and one.offline is None:
                    one.roll()
                    found = self._look(one)
                    if found is not None:
                        await self.clean(found)

    async def clean_dirtiest(self) -> bool:
        """Clean the log with the largest share of dirty bytes. Returns False if no log needs cleaning."""
        async with self._one_at_a_time:
            return await self._clean_dirtiest()

    async def _clean_dirtiest(self) -> bool:
        best: Dirty | None = None
        for number, one in enumerate(list(self._directory.logs.values())):
            if one.settings.compacted and self._may_try(one):
                found = self._look(one)
                if found is not None and found.is_worth_while and (best is None or found.ratio > best.ratio):
                    best = found
            if number % _LOOKED_AT_ONCE == _LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
        if best is None or best.log.offline is not None:
            return False
        found = self._look(best.log)  # the log may have changed while other work was running
        return found is not None and await self.clean(found)

    def _may_try(self, one: Log) -> bool:
        return asyncio.get_running_loop().time() >= self._not_before.get((one.topic, one.partition), 0.0)

    def _look(self, one: Log) -> Dirty | None:
        try:
            if outgrows_replay(one):
                one.roll()
            return look(one, self._world.wall_ms())
        except (OSError, Damage, KafkaError) as error:
            self._put_off(one, error)
            return None

    def _put_off(self, one: Log, error: OSError | Damage | KafkaError) -> None:
        log.warning("%r cannot be cleaned: %s; it is still served; retry in %d s", one, error, RETRY_S)
        now = asyncio.get_running_loop().time()
        self._not_before = {key: at for key, at in self._not_before.items() if at > now}
        self._not_before[one.topic, one.partition] = now + RETRY_S

    async def clean(self, dirty: Dirty) -> bool:
        """Clean one log and save its cleaner offset. Return False if that failed; it is tried again later."""
        one, config = dirty.log, self._config()
        limits = Limits(
            map_bytes=int(
                min(config.log_cleaner_dedupe_buffer_size, MAP_BYTES_MAX)
                * min(config.log_cleaner_io_buffer_load_factor, 1.0)
            ),
            read_bytes=min(max(config.log_cleaner_io_buffer_size, 1), READ_BYTES_MAX),
            bytes_per_second=lambda: self._config().log_cleaner_io_max_bytes_per_second,
        )
        cleaning = Cleaning(dirty, limits, self._world.wall_ms())
        try:
            end = await cleaning.run()
        except Abandoned:
            log.info("%r was truncated, moved or deleted while it was cleaned", one)
            return False
        except (OSError, Damage, KafkaError) as error:
            if not cleaning.is_over:  # otherwise the error is caused by files that were replaced or closed
                self._put_off(one, error)
            return False
        finally:
            self._directory.collect(one)
        before = dirty.clean_bytes + dirty.dirty_bytes
        log.info(
            "%r: offsets %d to %d cleaned, %d of %d bytes remain", one, dirty.first, end, cleaning.written_bytes, before
        )
        await self._directory.save_cleaned()
        return True
