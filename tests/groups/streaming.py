"""Members of streams groups and a model of their clients, for tests of the group machine."""

from __future__ import annotations

from typing import Any

from kpybroker.groups.ground.commands import StreamsHeartbeat
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.streams.tasks import Task, tasks_in
from kpybroker.wire.rpc.streams_group_heartbeat import Request, Response, TaskIds, Topology
from oracle.streams_scenes import passing, rows
from tests.groups.stage import Stage

AT_ONCE = GroupSettings(first_join_pause_ms=0, streams_assignment_interval_ms=0, streams_initial_rebalance_delay_ms=0)
TIMEOUT_MS = 60_000


def beat(member: str, epoch: int, *, group: str = "g", **said: Any) -> StreamsHeartbeat:
    """A heartbeat."""
    return StreamsHeartbeat(
        Request(group_id=group, member_id=member, member_epoch=epoch, **said), "client", "/127.0.0.1"
    )


def join(member: str, topology: Topology | None = None, *, process: str = "", group: str = "g", **said: Any) -> Any:
    """A heartbeat that joins; by default, with a topology that reads topic `t`."""
    given: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    given |= {"rebalance_timeout_ms": TIMEOUT_MS, "process_id": process or f"process of {member}", **said}
    return beat(member, 0, group=group, topology=passing("t") if topology is None else topology, **given)


def owning(member: str, epoch: int, active: dict[str, list[int]], **standby: list[int]) -> StreamsHeartbeat:
    """A heartbeat with the tasks that the member has; standby tasks by subtopology."""
    return beat(member, epoch, active_tasks=rows(active), standby_tasks=rows(standby), warmup_tasks=[])


def tasks(told: list[TaskIds] | None) -> set[Task] | None:
    """The tasks in a field of a response."""
    return None if told is None else set(tasks_in(told))


def response(stage: Stage, command: StreamsHeartbeat) -> Response:
    """The response to a heartbeat; raises a refusal."""
    found: Response = stage.answer(command).response
    return found


class Client:
    """One client: it gives tasks up as soon as it hears that it must, and says so with its next heartbeat."""

    def __init__(self, member: str, process: str, topology: Topology) -> None:
        self.member = member
        self.process = process
        self._topology = topology
        self.epoch = 0
        self.active: set[Task] = set()
        self.standby: set[Task] = set()

    @property
    def is_in(self) -> bool:
        return self.epoch > 0

    def beat(self, stage: Stage, *, tells: bool = True, hears: bool = True) -> Response:
        """Join, or send a heartbeat. tells: with the tasks that it has; hears: the response arrives. Raises
        KafkaError."""
        if not self.is_in:
            told = response(stage, join(self.member, self._topology, process=self.process))
        elif tells:
            told = response(
                stage,
                beat(
                    self.member,
                    self.epoch,
                    active_tasks=_rows(self.active),
                    standby_tasks=_rows(self.standby),
                    warmup_tasks=[],
                ),
            )
        else:
            told = response(stage, beat(self.member, self.epoch))
        if hears:
            self.epoch = told.member_epoch
            active, standby = tasks(told.active_tasks), tasks(told.standby_tasks)
            if active is not None and standby is not None:
                self.active, self.standby = active, standby
        return told

    def abandon(self) -> None:
        """It was fenced, or left: it gives everything up, and joins anew with its next heartbeat."""
        self.epoch, self.active, self.standby = 0, set(), set()


def _rows(those: set[Task]) -> list[TaskIds]:
    by_name: dict[str, list[int]] = {}
    for name, partition in sorted(those):
        by_name.setdefault(name, []).append(partition)
    return rows(by_name)
