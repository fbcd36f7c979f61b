"""Mutants of share groups: in the memory of leaders, in the share coordinator and in the responses to members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpybroker.errors import KafkaError
from kpybroker.machine.contract import Outcome, Stored
from kpybroker.serving.shares.fetching import ShareView
from kpybroker.shares import partition, records, runs
from kpybroker.shares.batches import DeliveryState
from kpybroker.shares.leader import LedSharePartition
from kpybroker.shares.machine import ShareMachine
from kpybroker.shares.partition import SharePartition, Write
from kpybroker.shares.state import NO_EPOCH
from kpybroker.sim.mutants.mutant import Mutant, Patch, force

MOVES = ("crash", "pause", "partition", "isolate", "restart")


def _ends_all_locks(expire: Callable[..., bool]) -> Callable[..., bool]:
    def hasty(share: SharePartition, limits: Any, now_ms: int) -> bool:
        return expire(share, limits, now_ms + limits.lock_ms // 2)

    return hasty


def _never_too_often(state_after: Callable[..., DeliveryState]) -> Callable[..., DeliveryState]:
    def tireless(kind: int, deliveries: int, limits: Any) -> DeliveryState:
        return state_after(kind, 0, limits)

    return tireless


def _answers_at_once(acknowledge: Callable[..., Any]) -> Callable[..., Any]:
    def hasty(led: LedSharePartition, *told: Any) -> None:
        acknowledge(led, *told)

    return hasty


def _takes_released_as_done(settle: Callable[[SharePartition], None]) -> Callable[[SharePartition], None]:
    def careless(share: SharePartition) -> None:
        for run in share._runs[:1]:
            if run.state is DeliveryState.AVAILABLE and run.deliveries:
                run.become(DeliveryState.ACKNOWLEDGED)
        settle(share)

    return careless


def _lets_go_when_it_refuses(acknowledge: Callable[..., Any]) -> Callable[..., Any]:
    def careless(share: SharePartition, member_id: str, *told: Any) -> Any:
        try:
            return acknowledge(share, member_id, *told)
        except KafkaError:
            for run in share._runs:
                if run.member_id == member_id and run.state is DeliveryState.ACQUIRED:
                    run.become(DeliveryState.AVAILABLE)
            raise

    return careless


def _counts_none_as_complete(take_write: Callable[[SharePartition], Write | None]) -> Callable[..., Write | None]:
    def uncounted(share: SharePartition) -> Write | None:
        write = take_write(share)
        return None if write is None else write._replace(complete_count=0)

    return uncounted


def _fences_nobody(led: Callable[..., Any]) -> Callable[..., Any]:
    def open_to_all(machine: ShareMachine, key: Any, _: int, what: str) -> Any:
        return led(machine, key, NO_EPOCH, what)

    return open_to_all


def _finds_none_aborted(*_: Any) -> list[Any]:
    return []


def _skips_updates(apply: Callable[[ShareMachine, Stored], None]) -> Callable[[ShareMachine, Stored], None]:
    def forgetful(machine: ShareMachine, record: Stored) -> None:
        if machine._now_ms is None and records.kind_of(record) == records.UPDATE:
            force(machine, _applied=record.offset + 1)
        else:
            apply(machine, record)

    return forgetful


def _acquires_twice(run_acquire: Callable[..., None]) -> Callable[..., None]:
    def double(run: Any, member_id: str, deadline_ms: int) -> None:
        run_acquire(run, member_id, deadline_ms)
        run.deliveries += 1

    return double


def _acknowledges_for_anybody(check_held: Callable[..., None]) -> Callable[..., None]:
    def trusting(share: SharePartition, _: str, first: int, last: int) -> None:
        for run in share._runs[share._at(first) :]:
            if run.first <= last and run.member_id is not None:
                check_held(share, run.member_id, max(first, run.first), min(last, run.last))

    return trusting


def _needs_only_the_end(find_needed: Callable[..., Any]) -> Callable[..., Any]:
    def greedy(machine: ShareMachine, ticket: Any, *rest: Any) -> Any:
        outcome = find_needed(machine, ticket, *rest)
        return Outcome(outcome.records, [(ticket, machine._applied)])

    return greedy


SHARES = (
    Mutant(
        "locks of share groups end after half their time",
        (Patch(SharePartition, "expire", _ends_all_locks(SharePartition.expire)),),
        ("crash",),
        actors=("shares",),
    ),
    Mutant(
        "records are delivered beyond the delivery limit",
        (Patch(partition, "_state_after", _never_too_often(partition._state_after)),),
        ("crash",),
        actors=("shares",),
    ),
    Mutant(
        "one delivery counts as two",
        (Patch(runs.Run, "acquire", _acquires_twice(runs.Run.acquire)),),
        ("crash",),
        actors=("shares",),
    ),
    Mutant(
        "acknowledgements of share groups are answered before they are written",
        (Patch(LedSharePartition, "acknowledge", _answers_at_once(LedSharePartition.acknowledge)),),
        MOVES,
        brokers=3,
        actors=("shares",),
    ),
    Mutant(
        "a released record at the start counts as acknowledged",
        (Patch(SharePartition, "_settle", _takes_released_as_done(SharePartition._settle)),),
        ("crash",),
        actors=("shares",),
    ),
    Mutant(
        "a refused acknowledgement releases the member's records",
        (Patch(SharePartition, "acknowledge", _lets_go_when_it_refuses(SharePartition.acknowledge)),),
        ("crash",),
        actors=("shares",),
    ),
    Mutant(
        "a member acknowledges what another one holds",
        (Patch(SharePartition, "_check_held", _acknowledges_for_anybody(SharePartition._check_held)),),
        ("crash",),
        actors=("shares",),
    ),
    Mutant(
        "records that are acknowledged out of order are not counted",
        (Patch(SharePartition, "take_write", _counts_none_as_complete(SharePartition.take_write)),),
        ("crash",),
        actors=("shares",),
    ),
    Mutant(
        "a deposed leader writes the state of share groups",
        (Patch(ShareMachine, "_led", _fences_nobody(ShareMachine._led)),),
        MOVES,
        brokers=3,
        actors=("shares",),
    ),
    Mutant(
        "share groups that read committed records get aborted ones",
        (Patch(ShareView, "_aborted", _finds_none_aborted),),
        ("crash",),
        actors=("shares",),
    ),
    Mutant(
        "a replay skips updates of share partitions",
        (Patch(ShareMachine, "apply", _skips_updates(ShareMachine.apply)),),
        MOVES,
        actors=("shares",),
    ),
    Mutant(
        "pruning deletes states that are still needed",
        (Patch(ShareMachine, "_find_needed", _needs_only_the_end(ShareMachine._find_needed)),),
        ("crash",),
        actors=("shares",),
    ),
)
