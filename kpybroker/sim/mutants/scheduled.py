"""Mutants with bugs in scheduled delivery: in the leaders of delivery logs, and in the Produce of scheduled records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpybroker.scheduled.delivery_logs import DeliveryLogs, MissingEntries
from kpybroker.scheduled.division import DividedBatch
from kpybroker.scheduled.leader import DeliveryLeader
from kpybroker.scheduled.state import DeliveryState
from kpybroker.sim.mutants.mutant import Mutant, Patch, force
from kpybroker.storage.producers.producers import DELIVERY_PRODUCER, ProducerStates
from kpybroker.wire.records.batch import Batch, Record

MOVES = ("crash", "pause", "partition", "isolate", "restart")
EARLY_MS = 3000


def _is_hasty(due: Callable[..., Any]) -> Callable[..., Any]:
    def early(state: DeliveryState, now_ms: int, most: int) -> Any:
        return due(state, now_ms + EARLY_MS, most)

    return early


def _wakes_early(next_due_ms: Callable[..., int | None]) -> Callable[..., int | None]:
    def early(state: DeliveryState) -> int | None:
        due_ms = next_due_ms(state)
        return None if due_ms is None else due_ms - EARLY_MS

    return early


def _forgets_deliveries(loaded: Callable[[DeliveryState], None]) -> Callable[[DeliveryState], None]:
    def forgetful(state: DeliveryState) -> None:
        force(state, coverage=())
        loaded(state)

    return forgetful


def _ignores_transactions(apply: Callable[..., None]) -> Callable[..., None]:
    def careless(state: DeliveryState, record: Record, transaction: int | None = None) -> None:
        apply(state, record)

    return careless


def _takes_deliveries_twice(check: Callable[..., Any]) -> Callable[..., Any]:
    def credulous(states: ProducerStates, batch: Batch, *rest: Any) -> Any:
        return None if batch.producer_id == DELIVERY_PRODUCER else check(states, batch, *rest)

    return credulous


def _divides_anew(batch: DividedBatch, _: Any) -> Any:
    return batch.scheduled()


def _accepts_all(*_: Any) -> None:
    """Accepts every sequence."""


async def _writes_nothing(*_: Any) -> None:
    """Does not write the entry."""


def _knows_what_is_committed(init: Callable[..., None]) -> Callable[..., None]:
    def rash(leader: DeliveryLeader, world: Any, partition: Any, *rest: Any) -> None:
        init(leader, world, partition, *rest)
        force(partition, epoch_start=0)

    return rash


SCHEDULED = (
    Mutant(
        "scheduled records are delivered before their time",
        (
            Patch(DeliveryState, "due", _is_hasty(DeliveryState.due)),
            Patch(DeliveryState, "next_due_ms", _wakes_early(DeliveryState.next_due_ms)),
        ),
        ("crash",),
        actors=("scheduled",),
    ),
    Mutant(
        "a leader that has loaded a delivery log forgets what was delivered",
        (Patch(DeliveryState, "loaded", _forgets_deliveries(DeliveryState.loaded)),),
        ("crash", "restart"),
        actors=("scheduled",),
    ),
    Mutant(
        "scheduled records of aborted transactions are delivered",
        (Patch(DeliveryState, "apply", _ignores_transactions(DeliveryState.apply)),),
        ("crash",),
        actors=("scheduled",),
    ),
    Mutant(
        "a delivery that is sent again is appended again",
        (Patch(ProducerStates, "check", _takes_deliveries_twice(ProducerStates.check)),),
        MOVES,
        brokers=3,
        actors=("scheduled",),
    ),
    Mutant(
        "a batch that is sent again is divided by its new time",
        (Patch(DividedBatch, "absent", _divides_anew),),
        MOVES,
        brokers=3,
        actors=("scheduled",),
    ),
    Mutant(
        "scheduled records are acknowledged, but not written",
        (Patch(DeliveryLogs, "schedule", _writes_nothing),),
        ("crash",),
        actors=("scheduled",),
    ),
    Mutant(
        "batches behind a missing entry are accepted",
        (Patch(MissingEntries, "check", _accepts_all),),
        MOVES,
        brokers=3,
        actors=("scheduled",),
    ),
    Mutant(
        "a new leader delivers before it knows what is committed",
        (Patch(DeliveryLeader, "__init__", _knows_what_is_committed(DeliveryLeader.__init__)),),
        MOVES,
        brokers=3,
        actors=("scheduled",),
    ),
)
