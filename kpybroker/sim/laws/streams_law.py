"""Checks what the members of a streams group (KIP-1071) are told, and what StreamsGroupDescribe returns.

- An active task never has two owners (`PartitionOwnership`), and nobody else can commit its offsets.
- Epochs never decrease: a member never reaches an epoch that its group has not, and a group keeps its epoch across
  coordinators.
- A member that has left never returns.
- In a target assignment, a process has a task at most once, as active or as standby task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from kpybroker.sim.laws.assignment_law import PartitionOwnership
from kpybroker.sim.world.history import History
from kpybroker.wire.rpc.streams_group_describe import Assignment, DescribedGroup, TaskIds

Task = tuple[str, int]
"""A subtopology and the number of a partition."""


def tasks_of(rows: Iterable[TaskIds]) -> list[Task]:
    """The tasks in one list of a description."""
    return [(row.subtopology_id, index) for row in rows for index in row.partitions]


class StreamsLaw:
    """The law of one group. `session_s`: the session timeout of its members in seconds."""

    def __init__(self, history: History, group: str, session_s: float) -> None:
        self._history = history
        self._group = group
        self._session_s = session_s
        self._ownership = PartitionOwnership(history, group, session_s)
        self._owners: dict[Task, dict[str, tuple[float, float]]] = {}
        """The times since when and until when a client surely owns a task, by task and client."""
        self.left: set[str] = set()
        """The ids of the members whose departure the coordinator has confirmed."""
        self.least_epoch = 0
        """The highest epoch of the group that a response has shown."""

    # ---- what members are told

    def owns(self, client: str, tasks: Collection[Task], sent_at_s: float) -> None:
        """Record that a heartbeat sent at this time had a response, and that the client owns these active tasks."""
        for task in tasks:
            owners = self._owners.setdefault(task, {})
            since_s, _ = owners.get(client, (self._history.now_s, 0.0))
            owners[client] = since_s, sent_at_s + self._session_s
        self._ownership.owns(client, tasks, sent_at_s)

    def revokes(self, client: str, tasks: Iterable[Task]) -> None:
        """Record that a client gives up active tasks. Must be called before it sends its heartbeat."""
        for task in tasks:
            self._owners.get(task, {}).pop(client, None)
            self._ownership.revokes(client, [task])

    def reached(self, member_id: str, before: int, epoch: int) -> None:
        """Record the member epoch in a response to a member that was in the epoch `before`."""
        if epoch < before:
            self._history.breach(f"{member_id} went from epoch {before} back to {epoch}")
        self.least_epoch = max(self.least_epoch, epoch)

    def committed(self, client: str, member_id: str, task: Task, sent_at_s: float) -> None:
        """Record that a commit for a task, sent at this time, was accepted."""
        if member_id in self.left:
            self._history.breach(f"{member_id} has left {self._group}, and could commit for {task}")
        for other, (since_s, until_s) in self._owners.get(task, {}).items():
            if other != client and since_s < sent_at_s and until_s > self._history.now_s:
                self._history.breach(f"{member_id} could commit for {task}, which {other} owns")

    # ---- what a description shows

    def check(self, shown: DescribedGroup) -> None:
        """Check a description by itself."""
        group, members = self._group, shown.members
        ahead = [each.member_id for each in members if each.member_epoch > shown.assignment_epoch]
        if shown.assignment_epoch > shown.group_epoch or ahead:
            self._history.breach(
                f"{group} is shown in epoch {shown.group_epoch} with an assignment of epoch {shown.assignment_epoch}; "
                f"ahead of it are {ahead}"
            )
        owned = Counter(task for each in members for task in tasks_of(each.assignment.active_tasks))
        if twice := sorted(task for task, count in owned.items() if count > 1):
            self._history.breach(f"the tasks {twice} of {group} are shown with two owners")
        placed = Counter(
            (each.process_id, task) for each in members for task in set(_all_tasks(each.target_assignment))
        )
        if twice_placed := sorted(place for place, count in placed.items() if count > 1):
            self._history.breach(f"processes of {group} are to have tasks twice: {twice_placed}")

    def doubts(self, shown: DescribedGroup, least_epoch: int, left: Collection[str]) -> list[str]:
        """The parts of a description that are wrong unless a former coordinator made it. `least_epoch` and `left` are
        those of the time before the request."""
        found = []
        if shown.group_epoch < least_epoch:
            found.append(f"{self._group} was in epoch {least_epoch}, and is shown in epoch {shown.group_epoch}")
        if back := sorted({each.member_id for each in shown.members} & set(left)):
            found.append(f"{back} have left {self._group}, and are shown as members")
        self.least_epoch = max(self.least_epoch, shown.group_epoch)
        return found


def _all_tasks(assignment: Assignment) -> list[Task]:
    return tasks_of(assignment.active_tasks) + tasks_of(assignment.standby_tasks)
