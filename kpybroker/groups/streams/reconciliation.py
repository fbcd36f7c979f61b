"""Brings a member from its current to its target tasks, one safe step at a time (KIP-1071).

First it revokes tasks and confirms that; only then does its epoch advance. It is assigned an active task of
another member when that member has revoked it. It is assigned a task that its own process has in another role when the
process has given that role up, because a process stores the state of a task in one place. So no task ever has two
owners.
"""

from __future__ import annotations

from kpybroker.groups.streams.group import CurrentAssignment, MemberState, StreamsGroup, StreamsMember
from kpybroker.groups.streams.tasks import HeldTasks, Task, Tasks

ACTIVE, STANDBY, WARMUP = 0, 1, 2


def reconciled(
    group: StreamsGroup, member: StreamsMember, epoch: int, target: Tasks, owned: Tasks | None
) -> CurrentAssignment:
    """The member's assignment after this heartbeat. `epoch`: the epoch of the target; `owned`: the tasks in the
    request, or None if the request contains none."""
    current = member.current
    if member.is_at(epoch):
        return current
    own_epoch = current.epoch
    if current.state is MemberState.UNREVOKED_TASKS:
        if owned is None or current.revoking.meets(owned):
            return current
        own_epoch += 1
    kept, revoking = _split(current.assigned, target)
    if not revoking.is_empty and (owned is None or revoking.meets(owned)):
        return CurrentAssignment(own_epoch, current.epoch, MemberState.UNREVOKED_TASKS, kept, revoking)
    free, all_free = _free(group, member, target, kept)
    assigned = HeldTasks(
        {**kept.active, **dict.fromkeys(sorted(free.active), epoch)},
        kept.standby | free.standby,
        kept.warmup | free.warmup,
    )
    state = MemberState.STABLE if all_free else MemberState.UNRELEASED_TASKS
    return CurrentAssignment(epoch, current.epoch, state, assigned)


def _split(held: HeldTasks, target: Tasks) -> tuple[HeldTasks, HeldTasks]:
    """The tasks that stay, and those to revoke."""
    kept = HeldTasks(
        {task: since for task, since in held.active.items() if task in target.active},
        held.standby & target.standby,
        held.warmup & target.warmup,
    )
    revoking = HeldTasks(
        {task: since for task, since in held.active.items() if task not in target.active},
        held.standby - target.standby,
        held.warmup - target.warmup,
    )
    return kept, revoking


def _free(group: StreamsGroup, member: StreamsMember, target: Tasks, kept: HeldTasks) -> tuple[Tasks, bool]:
    """The tasks that the member may be assigned now, and whether these are all the tasks that it still needs."""
    process_id = member.metadata.process_id
    wanted = Tasks(target.active.difference(kept.active), target.standby - kept.standby, target.warmup - kept.warmup)

    def is_free(task: Task, *, active: bool) -> bool:
        in_active = group.processes(ACTIVE, task)
        if in_active if active else process_id in in_active:
            return False
        return not any(process_id in group.processes(role, task) for role in (STANDBY, WARMUP))

    free = Tasks(
        frozenset(task for task in wanted.active if is_free(task, active=True)),
        frozenset(task for task in wanted.standby if is_free(task, active=False)),
        frozenset(task for task in wanted.warmup if is_free(task, active=False)),
    )
    return free, free == wanted
