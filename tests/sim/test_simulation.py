"""Tests that seeds pass, that a replay is exactly the same, and that broken brokers are detected."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from kpybroker.sim import simulation
from kpybroker.sim.__main__ import Shape, digest_elsewhere, keep_failure, run_seed
from kpybroker.sim.clients import transforming
from kpybroker.sim.clients.transacting import ClientDied, TransactionalSession
from kpybroker.sim.cluster.setup import DISK_HANG, OUTPUTS, Setup, setup_of
from kpybroker.sim.mutants.actors import ACTOR_MUTANTS
from kpybroker.sim.mutants.catalog import ONE_BROKER, hunt
from kpybroker.sim.mutants.claims import CLAIMERS
from kpybroker.sim.mutants.cleaning import CLEANERS
from kpybroker.sim.mutants.cluster import THREE_BROKERS
from kpybroker.sim.mutants.coordinators import COORDINATORS
from kpybroker.sim.mutants.log_dirs import MOVERS
from kpybroker.sim.mutants.mutant import Mutant
from kpybroker.sim.mutants.principals import PRINCIPALS
from kpybroker.sim.mutants.shares import SHARES
from kpybroker.sim.mutants.stalls import STALLS
from kpybroker.sim.mutants.streams import STREAMS
from kpybroker.sim.simulation import RunOutcome, Simulation
from kpybroker.sim.world.history import Sent
from kpybroker.sim.world.loop import Owner
from kpybroker.topics import TopicPartition

pytestmark = pytest.mark.slow

ONE = Shape(brokers=1)
THREE = Shape(brokers=3, replicas=1)
QUICK = 6
REPLICATED = 11
CAUGHT_WITHIN = 5
NOTES = Path(__file__).parents[2] / "docs" / "simulator.md"


@pytest.mark.parametrize("seed", range(QUICK))
def test_one_broker_keeps_the_contract(seed: int) -> None:
    outcome = run_seed(seed, ONE)
    assert outcome.breaches == []
    assert outcome.counts.get("acked acks=-1", 0) + outcome.counts.get("acked acks=1", 0) > 0


@pytest.mark.parametrize("seed", range(3))
def test_three_nodes_keep_their_metadata(seed: int) -> None:
    """The seeds have a quorum of three, with topics of one replica each."""
    assert run_seed(seed, THREE).breaches == []


@pytest.mark.parametrize("seed", range(REPLICATED))
def test_three_brokers_lose_nothing(seed: int) -> None:
    """The seeds are as in `make sim` by default: a quorum of three, with topics of up to three replicas."""
    assert Shape() == Shape(brokers=3, replicas=3)
    outcome = run_seed(seed, Shape())
    assert outcome.breaches == []
    assert outcome.counts.get("acked acks=-1", 0) > 0


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_compacted_topic_has_the_newest_record_of_each_key(seed: int, brokers: int) -> None:
    """Cleaning and retention run while all other faults occur; the coordinators' logs are also cleaned."""
    outcome = Simulation(setup_of(seed, brokers=brokers, compacts=True)).run()
    assert outcome.breaches == []
    assert outcome.counts["records compacted away"] > 0


def test_a_node_that_stops_while_it_writes_markers_retrieves_every_exception() -> None:
    """The seed that detected this: a disk fails under one partition while the markers of others are not committed."""
    assert Simulation(without_hangs(100_513)).run().breaches == []


def without_hangs(seed: int) -> Setup:
    """The seed without disk hangs, which were added to the simulator after the seed had found its bug."""
    setup = setup_of(seed, brokers=3)
    return replace(setup, faults=tuple(fault for fault in setup.faults if fault != DISK_HANG))


def test_others_go_on_when_a_disk_hangs() -> None:
    outcome = Simulation(setup_of(17, brokers=3, faults=(DISK_HANG,))).run()
    assert outcome.breaches == []
    assert outcome.counts["watched hangs"] > 0


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_replicas_move_between_log_directories(seed: int, brokers: int) -> None:
    """Meanwhile the second directory fails, and nodes crash, lose power and are partitioned."""
    faults = ("disk_error", "crash", "partition", "power_loss")
    assert Simulation(setup_of(seed, brokers=brokers, faults=faults, moves=True)).run().breaches == []


@pytest.mark.parametrize("seed", [120_039, 120_283])
def test_an_unreachable_directory_returns(seed: int) -> None:
    """The seeds that detected this: a topic was recreated in the meantime, and the disk fails again during the
    cleanup."""
    assert Simulation(without_hangs(seed)).run().breaches == []


@pytest.mark.parametrize("commits", [True, False])
def test_a_committed_transaction_counts_as_progress(commits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers that die after their first transaction never process all inputs, but make progress. Transformers
    that only abort make no progress."""
    begun: set[TransactionalSession] = set()
    write = TransactionalSession.write

    async def write_once(session: TransactionalSession, place: TopicPartition, sents: list[Sent]) -> None:
        if place[0] == OUTPUTS:
            if session in begun:
                raise ClientDied
            begun.add(session)
        await write(session, place, sents)

    if commits:
        monkeypatch.setattr(TransactionalSession, "write", write_once)
    else:
        monkeypatch.setattr(transforming, "ABORT_ODDS", 2.0)
    breaches = Simulation(setup_of(1, brokers=1, transacts=True, faults=())).run().breaches
    assert ["x0 got nothing done" in breach for breach in breaches] == ([] if commits else [True])


@pytest.mark.slow
def test_a_seed_is_one_run_under_any_hash_seed() -> None:
    here = f"{run_seed(3, ONE).digest:08x}"
    assert f"{run_seed(3, ONE, keeps_trace=True).digest:08x}" == here, "keeping the trace does not change the run"
    assert digest_elsewhere(3, ONE, 1) == here
    assert digest_elsewhere(3, ONE, 4242) == here
    assert digest_elsewhere(3, THREE, 1) == digest_elsewhere(3, THREE, 4242)


def test_other_seeds_are_other_runs() -> None:
    assert run_seed(1, ONE).digest != run_seed(2, ONE).digest


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [ONE_BROKER[1], ONE_BROKER[3]], ids=lambda mutant: mutant.description)
def test_mutants_are_detected(mutant: object) -> None:
    outcome = hunt(mutant, 0, CAUGHT_WITHIN)  # type: ignore[arg-type]
    assert outcome is not None
    assert outcome.breaches


MUTANTS = [
    *(*THREE_BROKERS, *COORDINATORS, *CLEANERS, *MOVERS, *CLAIMERS, *ACTOR_MUTANTS, *STALLS, *PRINCIPALS),
    *(*SHARES, *STREAMS),
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.description)
def test_a_broken_cluster_is_detected_by_its_seed(mutant: Mutant) -> None:
    """The recorded seed fails with the mutant and passes without it."""
    finds = f"`python -m kpybroker.sim.mutants --only {mutant.description!r}` finds a seed to note in {NOTES.name}"
    noted = re.search(rf"^\| {re.escape(mutant.description)} \| (\d+) \|$", NOTES.read_text(), re.MULTILINE)
    assert noted is not None, finds
    seed = int(noted[1])
    assert hunt(mutant, seed, 1) is not None, f"seed {seed} no longer detects the mutant: {finds}"
    assert hunt(mutant._replace(patches=()), seed, 1) is None, f"seed {seed} fails without it"


def test_a_failing_seed_is_reported_with_a_sentence(tmp_path: Path) -> None:
    outcome = RunOutcome(7, ["at 1.000 s: something was lost"], 255, 0.1, 20.0, {})
    told = json.loads(keep_failure(outcome, ONE, tmp_path / "deep").read_text())
    assert told["sentence"] == "at 1.000 s: something was lost"
    assert told["replay"] == "python -m kpybroker.sim --seed 7 --brokers 1 --replicas 3 --trace"


@pytest.mark.parametrize("where", ["callbacks without number", "one callback", "the loop"])
def test_a_run_that_computes_for_ever_is_stopped(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal stops the run, whatever code it executes; if code ignores the signal, the run is abandoned and
    reported."""
    given_up_at_s = process_time() + 3
    outlived: list[str] = []

    def spin() -> None:
        while process_time() < given_up_at_s:
            pass
        outlived.append(where)

    def come_again() -> None:
        if process_time() < given_up_at_s:
            loop.call_soon(come_again)
        else:
            outlived.append(where)

    class Spinning(Owner):
        """An owner of callbacks that makes the loop itself spin when the loop checks whether a callback should run."""

        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name == "halted":
                spin()
            return super().__getattribute__(name)

    monkeypatch.setattr(simulation, "CPU_LIMIT_S", 0.1)
    monkeypatch.setattr(simulation, "CPU_GRACE_S", 0.1)
    simulated = Simulation(setup_of(1, brokers=1))
    loop = simulated.loop
    if where == "the loop":
        loop.soon_for(Spinning("spinning"), spin)
    else:
        loop.call_soon(come_again if where == "callbacks without number" else spin)
    outcome = simulated.run()
    (breach,) = outcome.breaches
    assert "does not stop computing" in breach
    assert not outlived


def test_voters_change_in_a_seed() -> None:
    setup = next(setup for seed in range(100) if (setup := setup_of(seed, brokers=3)).voters_change)
    outcome = Simulation(setup).run()
    assert outcome.breaches == []
    assert outcome.counts["voter removed"] > 0


@pytest.mark.slow
def test_the_check_of_voters_detects_two_changes_at_once() -> None:
    outcome = hunt(THREE_BROKERS[-1], 0, 20)
    assert outcome is not None
    assert "in one change" in outcome.breaches[0]
