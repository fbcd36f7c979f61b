"""Mutants of streams groups (KIP-1071)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpybroker.groups.streams import configuration, reconciliation, records, transitions
from kpybroker.groups.streams.assignor import MemberTasks, sticky
from kpybroker.groups.streams.group import StreamsGroup
from kpybroker.groups.streams.tasks import Tasks
from kpybroker.groups.streams.transitions import Transitions
from kpybroker.sim.mutants.mutant import Mutant, Patch
from kpybroker.sim.mutants.shares import MOVES


def _checks_nothing(*_: Any) -> None:
    """A check that refuses nothing."""


def _writes_nothing(*_: Any) -> list[Any]:
    return []


def _all_free(_: Any, __: Any, target: Tasks, kept: Any) -> tuple[Tasks, bool]:
    return Tasks(target.active - kept.active.keys(), target.standby - kept.standby, target.warmup - kept.warmup), True


def _hides_epochs(refresh: Callable[..., None]) -> Callable[..., None]:
    """Bump the group's epoch without a record."""

    def forgetful(steps: Transitions, group: StreamsGroup, step: Any, **told: Any) -> None:
        written = len(step.records)
        refresh(steps, group, step, **told)
        del step.records[written:]

    return forgetful


def _one_process_each(assign: Callable[..., Any]) -> Callable[..., Any]:
    def lonely(members: dict[str, MemberTasks], *rest: Any) -> Any:
        return assign({name: each._replace(process_id=name) for name, each in members.items()}, *rest)

    return lonely


def _one_partition_fewer(decided: Callable[..., dict[str, int]]) -> Callable[..., dict[str, int]]:
    def stingy(*told: Any) -> dict[str, int]:
        return {name: max(count - 1, 1) for name, count in decided(*told).items()}

    return stingy


STREAMS = (
    Mutant(
        "a streams group accepts commits of members that have left",
        (Patch(StreamsGroup, "check_commit", _checks_nothing),),
        ("crash",),
        actors=("streams",),
    ),
    Mutant(
        "a task is assigned before its owner has given it up",
        (Patch(reconciliation, "_free", _all_free),),
        ("crash",),
        actors=("streams",),
    ),
    Mutant(
        "a streams group does not write its epoch",
        (Patch(Transitions, "refresh", _hides_epochs(Transitions.refresh)),),
        MOVES,
        actors=("streams",),
    ),
    Mutant(
        "a streams group does not write that a member has left",
        (Patch(records, "member_tombstones", _writes_nothing),),
        MOVES,
        actors=("streams",),
    ),
    Mutant(
        "silent members stay in their streams group",
        (Patch(Transitions, "begin_session", _checks_nothing),),
        ("crash",),
        actors=("streams",),
    ),
    Mutant(
        "standby tasks are placed without regard to processes",
        (Patch(transitions, "sticky", _one_process_each(sticky)),),
        ("crash",),
        actors=("streams",),
    ),
    Mutant(
        "internal topics of streams groups have a partition too few",
        (Patch(configuration, "_decided", _one_partition_fewer(configuration._decided)),),
        ("crash",),
        actors=("streams",),
    ),
)
