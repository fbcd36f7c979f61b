"""Tests the assignor of streams groups: it assigns each task once and evenly, and moves as few tasks as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.groups.streams.assignor import MemberTasks, TaskCount, sticky
from kpybroker.groups.streams.tasks import Task, Tasks

Assign = Callable[[Mapping[str, MemberTasks], Mapping[str, TaskCount], int], dict[str, Tasks]]
SUBTOPOLOGIES = st.dictionaries(
    st.sampled_from(["0", "1", "2"]), st.builds(TaskCount, st.integers(1, 6), st.booleans()), min_size=1
)
PROCESSES = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("pqr"), min_size=1)
"""Member -> its process."""


def every(subtopologies: Mapping[str, TaskCount]) -> set[Task]:
    return {(name, index) for name, each in subtopologies.items() for index in range(each.partitions)}


def members(processes: Mapping[str, str], before: Mapping[str, Tasks]) -> dict[str, MemberTasks]:
    return {member: MemberTasks(process, before.get(member, Tasks())) for member, process in processes.items()}


def check(assign: Assign, processes: Mapping[str, str], those: Mapping[str, TaskCount], replicas: int) -> None:
    """Check the laws of one assignment without previous tasks."""
    plan = assign(members(processes, {}), those, replicas)
    assert plan.keys() == processes.keys()
    active = Counter(task for tasks in plan.values() for task in tasks.active)
    assert active == Counter(every(those)), "each task has one owner"
    most = -(-len(active) // len(processes))
    assert max(len(tasks.active) for tasks in plan.values()) <= most, "evenly"
    stateful = every({name: each for name, each in those.items() if each.is_stateful})
    standby = Counter(task for tasks in plan.values() for task in tasks.standby)
    copies = min(replicas, len(set(processes.values())) - 1)
    assert standby == Counter({task: copies for task in stateful if copies}), "as many copies as other processes allow"
    for process in set(processes.values()):
        mine = [
            task
            for member, tasks in plan.items()
            if processes[member] == process
            for task in (*tasks.active, *tasks.standby)
        ]
        assert len(mine) == len(set(mine)), "a process has a task once"


@given(PROCESSES, SUBTOPOLOGIES, st.integers(0, 2))
def test_each_task_has_one_owner(processes: dict[str, str], those: dict[str, TaskCount], replicas: int) -> None:
    check(sticky, processes, those, replicas)


@given(PROCESSES, SUBTOPOLOGIES, st.integers(0, 2))
def test_nothing_moves_without_a_reason(processes: dict[str, str], those: dict[str, TaskCount], replicas: int) -> None:
    before = sticky(members(processes, {}), those, replicas)
    after = sticky(members(processes, before), those, replicas)
    assert {name: tasks.active for name, tasks in after.items()} == {
        name: tasks.active for name, tasks in before.items()
    }


@given(PROCESSES.filter(lambda found: len(found) > 1), SUBTOPOLOGIES)
def test_who_stays_keeps_everything(processes: dict[str, str], those: dict[str, TaskCount]) -> None:
    before = sticky(members(processes, {}), those, 0)
    gone = min(processes)
    left = {member: process for member, process in processes.items() if member != gone}
    after = sticky(members(left, before), those, 0)
    assert all(before[member].active <= after[member].active for member in left)


def test_a_copy_of_the_state_becomes_the_task() -> None:
    those = {"0": TaskCount(4, True)}
    processes = {"a": "p", "b": "q"}
    before = sticky(members(processes, {}), those, 1)
    assert before["a"].standby == before["b"].active
    third = {**processes, "c": "r"}
    after = sticky(members({"b": "q", "c": "r"}, before), those, 1)
    moved = before["a"].active & after["b"].active | after["c"].active
    assert moved == before["a"].active, "what a had goes to b, as far as b has room, and to c"
    assert sticky(members(third, before), those, 1).keys() == third.keys()


def lazy(those_members: Mapping[str, MemberTasks], those: Mapping[str, TaskCount], replicas: int) -> dict[str, Tasks]:
    """A mutant that assigns all tasks to one member."""
    return {
        member: Tasks(frozenset(every(those)) if member == min(those_members) else frozenset())
        for member in those_members
    }


def generous(
    those_members: Mapping[str, MemberTasks], those: Mapping[str, TaskCount], replicas: int
) -> dict[str, Tasks]:
    """A mutant that assigns all tasks to every member."""
    return {member: Tasks(frozenset(every(those))) for member in those_members}


@pytest.mark.parametrize("assign", [lazy, generous])
def test_wrong_assignors_are_noticed(assign: Assign) -> None:
    with pytest.raises(AssertionError):
        check(assign, {"a": "p", "b": "q"}, {"0": TaskCount(4, False)}, 0)
