"""Restarts with existing data: a thousand partitions with ten gigabytes, or a month of committed offsets.

Measures the time from exec until a client has the end of every partition, or an offset of every group.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import control
from bench.brokers import TimedKafka, TimedKPyBroker, broker
from bench.measure import Better, Brokers, Case, LoadError, Measure
from bench.produce_raw import produce_frame
from bench.raw import Connection
from bench.records import batch
from bench.target import Target
from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc import find_coordinator, list_offsets, offset_commit, offset_fetch

RETRY_S = 0.005
TIMEOUT_S = 600.0
PARTITIONS = 1_000
BATCHES = 10
"""Batches of a megabyte for each partition."""
RECORDS = 1_000
GROUPS, PLACES, COMMITS = 1_000, 100, 10
"""How often each group commits each partition: a million commits, of which a hundred thousand are current."""
IDLE_S, IDLE_CPU = 3.0, 0.1

Server = TimedKafka | TimedKPyBroker


def target_of(server: Server) -> Target:
    return Target(server.name, server.bootstrap, server.pid)


def time_to(server: Server, is_whole: Callable[[Connection], bool]) -> float:
    """Start a broker. Returns the seconds from exec until `is_whole`."""
    server.spawn()
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if not server.running:
            raise LoadError(f"{server.name} has exited: {server.output}")
        try:
            with Connection(target_of(server)) as connection:
                while not is_whole(connection):
                    time.sleep(RETRY_S)
                return time.perf_counter() - server.exec_at
        except (OSError, LoadError):
            time.sleep(RETRY_S)
    raise LoadError(f"{server.name} did not recover within {TIMEOUT_S:.0f} s")


class Logs(Case):
    """Starts with a thousand partitions of ten megabytes each, after a kill -9 and after a clean stop."""

    family = "restart"
    name = "restart-logs"
    brokers = Brokers.NONE
    warm_up_slices = 0
    repeats = 0
    measures = (
        Measure("restart.killed", "start with 1,000 partitions of 10 GB, after kill -9", "s", Better.LOWER, 0.7, 0.4),
        Measure("restart.clean", "… after a clean stop", "s", Better.LOWER, 1.0, 0.3),
    )

    def slice(self, target: Target) -> dict[str, float]:
        """Uses only the name of `target`."""
        with TemporaryDirectory(prefix="bench-restart-", ignore_cleanup_errors=True) as directory:
            server = broker(target.name, {}, Path(directory))
            server.start()
            topic = control.fresh_name(self.name)
            control.create_topic(target_of(server), topic, PARTITIONS)
            self._fill(target_of(server), topic)
            control.forget()
            os.sync()  # otherwise write-back would be measured too, because a clean stop waits for it
            server.kill9()
            killed_s = time_to(server, lambda connection: self._is_whole(connection, topic))
            server.stop()
            clean_s = time_to(server, lambda connection: self._is_whole(connection, topic))
            server.kill9()
        return {"restart.killed": killed_s, "restart.clean": clean_s}

    def _fill(self, target: Target, topic: str) -> None:
        records = batch(RECORDS, 1 << 10)
        control.end_offsets(target, topic, PARTITIONS)  # after this, each leader has applied its leadership
        with Connection(target) as connection:
            for number in range(BATCHES * PARTITIONS):
                connection.socket.sendall(produce_frame(topic, number % PARTITIONS, records))
                connection.reply()
        if control.end_offsets(target, topic, PARTITIONS) != [BATCHES * RECORDS] * PARTITIONS:
            raise LoadError(f"{target.name} has not accepted all records")

    def _is_whole(self, connection: Connection, topic: str) -> bool:
        asked = [list_offsets.ListOffsetsPartition(partition_index=at, timestamp=-1) for at in range(PARTITIONS)]
        request = list_offsets.Request(
            replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=asked)], timeout_ms=30_000
        )
        told = connection.ask(2, 10, request, list_offsets.Response).topics[0].partitions
        if any(one.error_code for one in told):
            return False
        if {one.offset for one in told} != {BATCHES * RECORDS}:
            raise AssertionError(f"{connection.target.name} has lost records")
        return True


class Commits(Case):
    """Starts with the offsets of groups that have committed for a month, after a clean stop."""

    family = "restart"
    name = "restart-groups"
    brokers = Brokers.NONE
    warm_up_slices = 0
    repeats = 0
    measures = (
        Measure(
            "restart.groups",
            f"start with 100,000 committed offsets, each committed {COMMITS} times",
            "s",
            Better.LOWER,
            1.0,
            0.5,
            absolute=True,
        ),
    )

    def __init__(self) -> None:
        self._topics: dict[str, str] = {}
        self._directories: dict[str, TemporaryDirectory[str]] = {}

    def prepare(self, target: Target) -> None:
        directory = self._directories[target.name] = TemporaryDirectory(prefix="bench-restart-")
        topic = self._topics[target.name] = control.fresh_name(self.name)
        server = broker(target.name, {"log.cleaner.backoff.ms": "1000"}, Path(directory.name))
        with server:
            running = target_of(server)
            control.create_topic(running, topic, PLACES)
            with Connection(running) as connection:
                for turn in range(COMMITS):
                    for group in range(GROUPS):
                        _commit(connection, topic, group, turn)
            control.forget()
            _await_rest(running)

    def slice(self, target: Target) -> dict[str, float]:
        server = broker(target.name, {}, Path(self._directories[target.name].name))
        topic = self._topics[target.name]
        taken_s = time_to(server, _all_known(topic))
        server.stop()
        return {"restart.groups": taken_s}

    def clean(self, target: Target) -> None:
        self._directories.pop(target.name).cleanup()


def _group(number: int) -> str:
    return f"restart-group-{number}"


def _commit(connection: Connection, topic: str, group: int, turn: int) -> None:
    places = [
        offset_commit.OffsetCommitRequestPartition(partition_index=at, committed_offset=turn * 1000 + at)
        for at in range(PLACES)
    ]
    topics = [offset_commit.OffsetCommitRequestTopic(name=topic, partitions=places)]
    request = offset_commit.Request(group_id=_group(group), topics=topics)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        told = connection.ask(8, 8, request, offset_commit.Response).topics[0].partitions
        refused = {one.error_code for one in told} - {0}
        if not refused:
            return
        if not refused <= {
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_COORDINATOR,
        }:
            raise LoadError(f"{connection.target.name} refuses commits: {refused}")
        if time.monotonic() > deadline:
            raise LoadError(f"{connection.target.name} accepts no commits")
        connection.ask(10, 4, find_coordinator.Request(coordinator_keys=[_group(group)]), find_coordinator.Response)
        time.sleep(RETRY_S)


def _all_known(topic: str) -> Callable[[Connection], bool]:
    """Whether every group has received a response. Refused groups are retried one at a time, so that the broker loads
    groups instead of sending refusals."""
    left = list(range(GROUPS))

    def all_known(connection: Connection) -> bool:
        while not _refused(connection, topic, left[:1]):
            left[:] = _refused(connection, topic, left)
            if not left:
                return True
        return False

    return all_known


def _refused(connection: Connection, topic: str, numbers: list[int]) -> list[int]:
    """Fetch an offset of each group. Returns the groups that are not loaded yet."""
    wanted = offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[PLACES - 1])
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id=_group(number), topics=[wanted]) for number in numbers]
    told = connection.ask(9, 8, offset_fetch.Request(groups=groups), offset_fetch.Response).groups
    known = {group.topics[0].partitions[0].committed_offset for group in told if not group.error_code}
    if not known <= {(COMMITS - 1) * 1000 + PLACES - 1}:
        raise AssertionError(f"{connection.target.name} has lost commits")
    return [number for number, group in zip(numbers, told, strict=True) if group.error_code]


def _await_rest(target: Target) -> None:
    """Wait until the broker is idle, which means that the cleaner is done."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        before = target.cpu()
        time.sleep(IDLE_S)
        if (target.cpu() - before).total_s < IDLE_S * IDLE_CPU:
            return
    raise LoadError(f"{target.name} does not become idle")


def cases() -> list[Case]:
    return [Logs(), Commits()]
