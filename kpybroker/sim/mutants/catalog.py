"""Lists all mutants. A mutant is a deliberate bug: a patch to the product that the checks of some seed must catch.

`python -m kpybroker.sim.mutants` prints for each mutant the seed that caught it and the breach that it found.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

from kpybroker.handlers import list_offsets
from kpybroker.machine.runner import Runner
from kpybroker.metadata.image import Image
from kpybroker.replication.partition.partition import Partition
from kpybroker.sim.actors.catalog import with_actors
from kpybroker.sim.cluster.setup import setup_of
from kpybroker.sim.mutants.actors import ACTOR_MUTANTS
from kpybroker.sim.mutants.claims import CLAIMERS
from kpybroker.sim.mutants.cleaning import CLEANERS
from kpybroker.sim.mutants.cluster import THREE_BROKERS
from kpybroker.sim.mutants.coordinators import COORDINATORS
from kpybroker.sim.mutants.log_dirs import MOVERS
from kpybroker.sim.mutants.mutant import Mutant, Patch, force
from kpybroker.sim.mutants.principals import PRINCIPALS
from kpybroker.sim.mutants.retirements import RETIREMENTS
from kpybroker.sim.mutants.scheduled import SCHEDULED
from kpybroker.sim.mutants.shares import SHARES
from kpybroker.sim.mutants.stalls import STALLS
from kpybroker.sim.mutants.streams import STREAMS
from kpybroker.sim.mutants.views import VIEWS
from kpybroker.sim.simulation import RunOutcome, Simulation
from kpybroker.storage.log import recovery, syncing
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.syncing import GroupSync
from kpybroker.storage.producers.producers import ProducerStates

SEEDS_MAX = 200


async def _syncs_nothing(*_: Any) -> None:
    """A sync that does nothing."""


def _without_names(sync_with: Callable[..., Any]) -> Callable[..., Any]:
    """Do not sync directories."""

    async def careless(syncing: GroupSync, paths: list[str], in_one_go: Callable[[], None], *directories: str) -> None:
        if not directories:
            await sync_with(syncing, paths, in_one_go)

    return careless


def _loads_no_producers(*_: Any) -> Generator[None, None, ProducerStates]:
    yield
    return ProducerStates()


def _settles_at_once(runner: Runner, end: int, answers: Any) -> None:
    for ticket, answer in answers:
        ticket.settle(answer)


def _flushes_whatever_happens(flush: Callable[[Log], None]) -> Callable[[Log], None]:
    def flush_anyway(log: Log, *, wait: bool = True) -> None:
        segment = log.segments.active
        try:
            if log._queue:
                log.files.world.disk.pwritev(segment.handle(), log._queue, segment.written_bytes)
        except OSError:
            pass  # the mutant ignores the error
        log._queue.clear()
        log.files.wrote(segment, segment.size_bytes - segment.written_bytes, log.end)

    del flush
    return flush_anyway


def _forgets_producer_ids(records: Callable[[Image], Iterator[Any]]) -> Callable[[Image], Iterator[Any]]:
    def without(image: Image) -> Iterator[Any]:
        return (record for record in records(image) if type(record).__name__ != "ProducerIdsRecord")

    return without


def _latest_as_it_comes(look_up: Callable[..., Any]) -> Callable[..., Any]:
    def answer(partition: Partition, *rest: Any) -> Any:
        force(partition, epoch_start=0)
        return look_up(partition, *rest)

    return answer


POWER = ("power_loss", "fuse")
ONE_BROKER = (
    Mutant("an fsync of a log is lost", (Patch(syncing, "_sync_segment", _syncs_nothing),), POWER),
    Mutant(
        "names of new files are not synced",
        (Patch(GroupSync, "_sync_with", _without_names(GroupSync._sync_with)),),
        POWER,
    ),
    Mutant(
        "records are acknowledged when written, although fsync=always",
        (Patch(Partition, "committable_end", property(lambda self: self.log.written_end)),),
        POWER,
    ),
    Mutant(
        "a failed write is ignored",
        (Patch(Log, "flush", _flushes_whatever_happens(Log.flush)),),
        ("disk_full", "disk_error"),
    ),
    Mutant("recovery does not check batches", (Patch(recovery, "_unsound", lambda batch, segment, end: ""),), POWER),
    Mutant(
        "recovery loses the state of producers",
        (Patch(recovery, "loading_producers", _loads_no_producers),),
        ("crash", "fuse"),
    ),
    Mutant("responses are sent before their records are committed", (Patch(Runner, "_hold", _settles_at_once),), POWER),
    Mutant(
        "snapshots lack producer ids",
        (Patch(Image, "records", _forgets_producer_ids(Image.records)),),
        ("crash", "restart"),
    ),
    Mutant(
        "latest offsets are returned before the high watermark is known",
        (Patch(list_offsets, "_look_up", _latest_as_it_comes(list_offsets._look_up)),),
        POWER,
    ),
)
ALL = (
    *ONE_BROKER,
    *THREE_BROKERS,
    *COORDINATORS,
    *CLEANERS,
    *MOVERS,
    *CLAIMERS,
    *ACTOR_MUTANTS,
    *STALLS,
    *PRINCIPALS,
    *SHARES,
    *STREAMS,
    *SCHEDULED,
    *VIEWS,
    *RETIREMENTS,
)


MISFIT = re.compile(r"TypeError\(.*(unexpected keyword|positional argument|required keyword)")
"""The error of a patch whose arguments do not fit the function that it replaces. It must not count as caught."""


def hunt(mutant: Mutant, first: int, seeds_max: int) -> RunOutcome | None:
    """The outcome of the first seed that catches the mutant; None if no seed catches it."""
    with mutant.alive():
        for seed in range(first, first + seeds_max):
            faults = mutant.faults or None
            drawn = {"transacts": mutant.transacts, "compacts": mutant.compacts, "moves": mutant.moves}
            setup = setup_of(seed, brokers=mutant.brokers, faults=faults, **drawn)
            setup = with_actors(setup, mutant.actors, only=True)
            outcome = Simulation(setup, ends_at_breach=True).run()
            if outcome.breaches:
                fault = MISFIT.search(outcome.breaches[0])
                assert fault is None, f"{mutant.description!r} does not fit the code: {outcome.breaches[0]}"
                return outcome
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kpybroker.sim.mutants", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="the most seeds to try for each mutant")
    parser.add_argument("--only", default="", help="only mutants whose description contains this text")
    given = parser.parse_args()
    chosen = [mutant for mutant in ALL if given.only in mutant.description]
    caught = 0
    for mutant in chosen:
        outcome = hunt(mutant, given.first, given.seeds)
        if outcome is None:
            print(f"SURVIVED {mutant.description}: no breach in {given.seeds} seeds", flush=True)
        else:
            caught += 1
            print(f"caught   {mutant.description}: seed {outcome.seed}, {outcome.breaches[0][:140]}", flush=True)
    print(f"{caught} of {len(chosen)} mutants caught")
    sys.exit(0 if caught == len(chosen) else 1)
