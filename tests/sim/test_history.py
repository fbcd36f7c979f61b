"""Tests of the invariants of the history: each violation is reported as one sentence, and a valid history has none."""

from __future__ import annotations

from kpybroker.sim.checks.checks import check_ledger
from kpybroker.sim.cluster.setup import setup_of
from kpybroker.sim.simulation import Simulation
from kpybroker.sim.world.history import ON_ITS_WAY_S, History, Sent

PLACE = ("t", 0)


def history_of(*, values: int = 3, producer: str = "p") -> tuple[Simulation, History, list[Sent]]:
    """Some records, sent by one idempotent producer and acknowledged at 0, 1, 2 ..."""
    simulation = Simulation(setup_of(0))
    history = simulation.history
    sents = [Sent(b"%d" % number, PLACE, -1, True) for number in range(values)]
    for offset, sent in enumerate(sents):
        history.sends(producer, sent)
        history.acked(sent, offset)
    return simulation, history, sents


def found(*values: bytes) -> list[tuple[int, bytes]]:
    return list(enumerate(values))


def test_a_clean_history_has_no_breach() -> None:
    simulation, history, _ = history_of()
    history.read("c", PLACE, 0, 1, b"0", 1)
    history.latest(PLACE, 1, 1, 3)
    check_ledger(simulation, history.ledger(PLACE), found(b"0", b"1", b"2"))
    assert history.breaches == []


def test_lost_duplicated_moved_and_reordered_records_are_detected() -> None:
    for now, sentence in (
        (found(b"0", b"1"), "is lost"),
        (found(b"0", b"1", b"2", b"1"), "twice"),
        (found(b"x", b"0", b"1", b"2"), "was acknowledged at 0"),
        (found(b"0", b"2", b"1"), "out of order"),
    ):
        simulation, history, _ = history_of()
        check_ledger(simulation, history.ledger(PLACE), now)
        assert any(sentence in breach for breach in history.breaches), sentence


def test_offsets_that_change_their_value_are_detected() -> None:
    _, history, _ = history_of()
    history.read("c", PLACE, 0, 1, b"0", 1)
    history.read("d", PLACE, 0, 2, b"1", 2)
    assert "was b'0' in epoch 1" in history.breaches[0]


def test_records_that_no_producer_sent_are_detected() -> None:
    _, history, _ = history_of()
    history.read("c", PLACE, 9, 1, b"ghost", 1)
    assert "no producer has sent" in history.breaches[0]


def test_decreasing_latest_offsets_are_detected_except_on_a_deposed_leader() -> None:
    _, history, _ = history_of()
    ledger = history.ledger(PLACE)
    history.latest(PLACE, 0, 4, 3)
    history.latest(PLACE, ledger.ends.least(3), 3, 2)
    assert history.breaches == []
    history.latest(PLACE, ledger.ends.least(5), 5, 2)
    assert "went back from 3 to 2" in history.breaches[0]


def test_decreasing_commits_are_detected_except_while_one_is_in_flight() -> None:
    _, history, _ = history_of()
    commits = history.committed("g", PLACE)
    commits.sent = commits.acked = 7
    history.fetched_commit("g", PLACE, commits.floor(0.0), 7)
    assert history.breaches == []
    commits.unanswered.append((0.0, 5))
    history.fetched_commit("g", PLACE, commits.floor(1.0), 5)
    assert history.breaches == []
    assert commits.floor(ON_ITS_WAY_S + 1) == 7
    history.fetched_commit("g", PLACE, commits.floor(ON_ITS_WAY_S + 1), 6)
    assert len(history.breaches) == 1
    history.fetched_commit("g", PLACE, 0, 99)
    assert "committed 7 at most" in history.breaches[1]


def test_repeated_producer_ids_and_partitions_with_two_owners_are_detected() -> None:
    _, history, _ = history_of()
    history.producer_id("p", 4)
    history.producer_id("p", 4)
    history.assigned("g", 1, "m", [PLACE])
    history.assigned("g", 2, "n", [PLACE])
    assert history.breaches == []
    history.producer_id("q", 4)
    history.assigned("g", 2, "m", [PLACE])
    assert len(history.breaches) == 2
