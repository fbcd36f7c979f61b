"""Tasks of a streams application: a task processes one partition of the source topics of a subtopology (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Task = tuple[str, int]
"""(subtopology id, partition)"""
NO_TASKS: frozenset[Task] = frozenset()


class Tasks(NamedTuple):
    """Tasks of one member by their role: a target assignment, or the tasks in a client's request."""

    active: frozenset[Task] = NO_TASKS
    standby: frozenset[Task] = NO_TASKS
    warmup: frozenset[Task] = NO_TASKS


class HeldTasks(NamedTuple):
    """Tasks that a member has, or must revoke."""

    active: Mapping[Task, int] = {}
    """Task -> the epoch in which the member was assigned it; the member may commit with that epoch or a later one."""
    standby: frozenset[Task] = NO_TASKS
    warmup: frozenset[Task] = NO_TASKS

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def meets(self, tasks: Tasks) -> bool:
        """Whether one of these tasks is among the given ones, in the same role."""
        return not (
            tasks.active.isdisjoint(self.active)
            and tasks.standby.isdisjoint(self.standby)
            and tasks.warmup.isdisjoint(self.warmup)
        )

    def includes(self, tasks: Tasks) -> bool:
        """Whether all of the given tasks are among these, in the same role."""
        return tasks.active <= self.active.keys() and tasks.standby <= self.standby and tasks.warmup <= self.warmup


def by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    """Subtopology id -> partitions, in order."""
    found: dict[str, list[int]] = {}
    for subtopology, partition in sorted(tasks):
        found.setdefault(subtopology, []).append(partition)
    return found


def task_ids(make: Any, tasks: Iterable[Task]) -> list[Any]:
    """Rows of a message with these tasks. make: the class of the rows."""
    return [make(subtopology_id=name, partitions=partitions) for name, partitions in by_subtopology(tasks).items()]


def tasks_in(rows: Iterable[Any]) -> frozenset[Task]:
    """The tasks in the rows of a message."""
    return frozenset((row.subtopology_id, partition) for row in rows for partition in row.partitions)
