"""Mutants with bugs in transactions and groups: in the coordinators, and in the replicas of their logs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kpybroker.groups.consumer.group import ConsumerGroup
from kpybroker.groups.offsets.committed import Committed
from kpybroker.groups.offsets.offsets import Offsets, Shown
from kpybroker.machine.contract import Moment, Outcome
from kpybroker.machine.runner import Runner
from kpybroker.replication.node.producer_ids import ProducerIds
from kpybroker.sim.cluster.cluster import SimWorld
from kpybroker.sim.mutants.mutant import Mutant, Patch
from kpybroker.storage.log.log import Log
from kpybroker.storage.producers.producers import ProducerStates
from kpybroker.transactions.commands import AddPartitions, End, Verify
from kpybroker.transactions.machine import TransactionMachine

UNHEARD = ("deaf",)
MOVES = ("crash", "pause", "partition", "isolate")


def _tells_endings_at_once(hold: Callable[..., None]) -> Callable[..., None]:
    def hasty(runner: Runner, end: int, answers: Any) -> None:
        held = []
        for ticket, answer in answers:
            if isinstance(answer, list) and isinstance(runner.machine, TransactionMachine):
                ticket.settle(answer)
            else:
                held.append((ticket, answer))
        hold(runner, end, held)

    return hasty


def _takes_every_epoch(decide: Callable[..., Outcome]) -> Callable[..., Outcome]:
    def credulous(machine: TransactionMachine, ticket: Any, command: Any, now: Moment) -> Outcome:
        if isinstance(command, AddPartitions | End | Verify):
            known = machine.transactions.get(command.transactional_id)
            if known is not None:
                command = command._replace(producer_epoch=known.producer_epoch)
        return decide(machine, ticket, command, now)

    return credulous


def _checks_no_epoch(*_: Any) -> None:
    """Accepts every producer epoch."""


def _whole(_: Log, high_watermark: int) -> int:
    return high_watermark


def _gives_each_twice(next_id: Callable[[ProducerIds], Awaitable[int]]) -> Callable[[ProducerIds], Awaitable[int]]:
    async def again(ids: ProducerIds) -> int:
        return (await next_id(ids)) // 2 * 2

    return again


def _one_before(fetch: Callable[..., Any]) -> Callable[..., Any]:
    def older(shown: Shown) -> Shown:
        return shown._replace(offset=max(shown.offset - 1, 0)) if isinstance(shown, Committed) else shown

    def stale(*asked: Any) -> Any:
        return [(topic, [(number, older(shown)) for number, shown in rows]) for topic, rows in fetch(*asked)]

    return stale


def _says_wall_time(world: SimWorld) -> int:
    return world.wall_ms()


def _is_free(*_: Any) -> bool:
    return True


COORDINATORS = (
    Mutant(
        "markers are written before the outcome is committed",
        (Patch(Runner, "_hold", _tells_endings_at_once(Runner._hold)),),
        UNHEARD,
        brokers=3,
        transacts=True,
    ),
    Mutant(
        "the epoch of a transactional producer is ignored",
        (
            Patch(TransactionMachine, "decide", _takes_every_epoch(TransactionMachine.decide)),
            Patch(ProducerStates, "check_epoch", _checks_no_epoch),
        ),
        MOVES,
        brokers=3,
    ),
    Mutant("the last stable offset is ignored", (Patch(Log, "stable_below", _whole),), MOVES, brokers=3),
    Mutant(
        "a producer id is assigned twice",
        (Patch(ProducerIds, "next", _gives_each_twice(ProducerIds.next)),),
        MOVES,
        brokers=3,
    ),
    Mutant(
        "a coordinator returns an offset below the committed one",
        (Patch(Offsets, "fetch", _one_before(Offsets.fetch)),),
        MOVES,
        brokers=3,
    ),
    Mutant(
        "a partition is assigned before its owner revoked it",
        (Patch(ConsumerGroup, "is_free", _is_free),),
        MOVES,
        brokers=3,
    ),
    Mutant(
        "timeouts use the wall clock",
        (Patch(SimWorld, "steady_ms", _says_wall_time),),
        ("clock_skew",),
        brokers=3,
    ),
)
