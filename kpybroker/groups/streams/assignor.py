"""Assigns active and standby tasks to the members of a streams group (Kafka's assignor "sticky").

Members of one process share its load; processes are assigned tasks in proportion to their members. Within these limits
a member keeps the tasks that it has; an active task that must move is assigned to a member with a copy of its state, if
that member is below its limit. A process never has the same task twice.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kpybroker.groups.streams.tasks import Task, Tasks


class MemberTasks(NamedTuple):
    """One member, with its previous target."""

    process_id: str
    target: Tasks = Tasks()


class TaskCount(NamedTuple):
    """The number of tasks of a subtopology. Tasks of a stateful subtopology may have standby tasks."""

    partitions: int
    is_stateful: bool


class _Quota:
    """The maximum number of tasks of a member. It is computed for the members that have not reached their maximum
    yet."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members
        self.most = 0
        self._divide()

    def _divide(self) -> None:
        self.most = -(-self._tasks // self._members) if self._members else 0

    def reached(self, count: int) -> None:
        """Update the quota, because a member has this many tasks now."""
        if count == self.most:
            self._members -= 1
            self._tasks -= count
            self._divide()


class _Process:
    """The members of one process, and the tasks that they have so far."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.tasks: set[Task] = set()

    @property
    def load(self) -> float:
        return sum(self.counts.values()) / len(self.counts)

    def idlest(self) -> str:
        """The member with the fewest tasks."""
        return min(self.counts, key=lambda member_id: self.counts[member_id])


def sticky(
    members: Mapping[str, MemberTasks], subtopologies: Mapping[str, TaskCount], standby_replicas: int
) -> dict[str, Tasks]:
    """The target of each member, by member id. Deterministic.

    members: by id; subtopologies: by id; standby_replicas: the copies of the state of each task.
    """
    if not members:
        return {}
    return _Assignment(members, subtopologies, standby_replicas).tasks()


class _Assignment:
    """One assignment while it is being computed."""

    def __init__(
        self, members: Mapping[str, MemberTasks], subtopologies: Mapping[str, TaskCount], standby_replicas: int
    ) -> None:
        self._process_of = {member_id: members[member_id].process_id for member_id in sorted(members)}
        self._processes: dict[str, _Process] = {}
        self._had_active: dict[Task, str] = {}
        self._had_standby: defaultdict[Task, list[str]] = defaultdict(list)
        self._active: dict[str, set[Task]] = {member_id: set() for member_id in members}
        self._standby: dict[str, set[Task]] = {member_id: set() for member_id in members}
        for member_id, process_id in self._process_of.items():
            self._processes.setdefault(process_id, _Process()).counts[member_id] = 0
            self._had_active.update(dict.fromkeys(members[member_id].target.active, member_id))
            for task in members[member_id].target.standby:
                self._had_standby[task].append(member_id)
        actives = _tasks(subtopologies)
        stateful = _tasks({name: each for name, each in subtopologies.items() if each.is_stateful})
        self._active_quota = _Quota(len(actives), len(members))
        self._quota = _Quota(len(actives) + standby_replicas * len(stateful), len(members))
        self._assign_active(actives)
        if standby_replicas:
            self._assign_standby(stateful, standby_replicas)

    def tasks(self) -> dict[str, Tasks]:
        return {
            member_id: Tasks(frozenset(self._active[member_id]), frozenset(self._standby[member_id]))
            for member_id in self._process_of
        }

    # -- active tasks ---------------------------------------------------------------------------------------------

    def _assign_active(self, tasks: list[Task]) -> None:
        left = []
        for task in sorted(tasks, key=_by_partition):  # tasks of one partition were given to one member
            had = self._had_active.get(task)
            if had is None or not self._has_room(had, self._active_quota):
                left.append(task)
            else:
                self._give_active(task, had)
        last = []
        for task in left:
            had = self._idlest(self._had_standby.get(task, ()))
            if had is None or not self._has_room(had, self._active_quota):
                last.append(task)
            else:
                self._give_active(task, had)
        heap = self._by_load()
        for task in sorted(last):
            process = self._processes[heap[0][1]]
            self._give_active(task, process.idlest())
            heapq.heapreplace(heap, (process.load, heap[0][1]))

    def _give_active(self, task: Task, member_id: str) -> None:
        self._active[member_id].add(task)
        count = self._count(task, member_id)
        self._active_quota.reached(count)
        self._quota.reached(count)

    # -- standby tasks --------------------------------------------------------------------------------------------

    def _assign_standby(self, tasks: list[Task], replicas: int) -> None:
        left: list[tuple[Task, int]] = []
        for task in sorted(tasks, key=_by_partition, reverse=True):
            for number in range(replicas):
                had = self._standby_holder(task)
                if had is None:
                    left.append((task, replicas - number))
                    break
                self._give_standby(task, had)
        heap = self._by_load()
        for task, count in sorted(left, reverse=True):
            for _ in range(count):
                if not self._give_to_idlest(task, heap):
                    break  # every process has the task

    def _standby_holder(self, task: Task) -> str | None:
        """A member that had the task and may have it as a standby task: the one where it was active, else the idlest
        one of those where it was a standby task."""
        had = self._had_active.get(task)
        if had is not None and self._may_copy(task, had):
            return had
        return self._idlest(each for each in self._had_standby.get(task, ()) if self._may_copy(task, each))

    def _may_copy(self, task: Task, member_id: str) -> bool:
        return task not in self._process(member_id).tasks and self._has_room(member_id, self._quota)

    def _give_to_idlest(self, task: Task, heap: list[tuple[float, str]]) -> bool:
        """Give a standby task to the process with the least load that does not have the task."""
        passed = []
        found = False
        while heap and not found:
            load, process_id = heapq.heappop(heap)
            process = self._processes[process_id]
            found = task not in process.tasks
            if found:
                self._give_standby(task, process.idlest())
                load = process.load
            passed.append((load, process_id))
        for each in passed:
            heapq.heappush(heap, each)
        return found

    def _give_standby(self, task: Task, member_id: str) -> None:
        self._standby[member_id].add(task)
        self._quota.reached(self._count(task, member_id))

    # -- loads ----------------------------------------------------------------------------------------------------

    def _process(self, member_id: str) -> _Process:
        return self._processes[self._process_of[member_id]]

    def _has_room(self, member_id: str, quota: _Quota) -> bool:
        return self._process(member_id).counts[member_id] < quota.most

    def _count(self, task: Task, member_id: str) -> int:
        process = self._process(member_id)
        process.tasks.add(task)
        process.counts[member_id] += 1
        return process.counts[member_id]

    def _idlest(self, member_ids: Iterable[str]) -> str | None:
        """The member whose process has the least load, and of these the one with the fewest tasks."""
        return min(
            member_ids,
            key=lambda member_id: (self._process(member_id).load, self._process(member_id).counts[member_id]),
            default=None,
        )

    def _by_load(self) -> list[tuple[float, str]]:
        return sorted((process.load, process_id) for process_id, process in self._processes.items())


def _tasks(subtopologies: Mapping[str, TaskCount]) -> list[Task]:
    return [(name, index) for name, each in subtopologies.items() for index in range(each.partitions)]


def _by_partition(task: Task) -> tuple[int, str]:
    return task[1], task[0]
