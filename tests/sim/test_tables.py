"""Tests that the invariant of a compacted topic detects lost records, but allows the loss of records that compaction
may remove."""

from __future__ import annotations

import math

import pytest

from kpybroker.sim.laws.tables import Forgetting, check_table
from kpybroker.sim.world.history import History, Sent, SentTransaction

PLACE = ("table", 0)
NEVER = Forgetting(tombstones_s=math.inf)
OLD, FRESH = 0.0, 95.0
NOW_S = 100.0


class Table:
    """Records of one key, one offset after the other."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.history = History(lambda: self.now_s)
        self.now_s = NOW_S
        self.sents: list[Sent] = []

    def write(
        self,
        *,
        at_s: float = OLD,
        is_tombstone: bool = False,
        acked: bool = True,
        transaction: SentTransaction | None = None,
    ) -> int:
        number = len(self.sents)
        sent = Sent(b"%d" % number, PLACE, -1, True, key=b"k", is_tombstone=is_tombstone, at_s=at_s)
        sent.transaction = transaction
        self.sents.append(sent)
        self.history.sends("w", sent)
        if acked:
            self.history.acked(sent, number)
        return number

    def breaches(self, *found: int, forgetting: Forgetting = NEVER, since_s: float = math.inf) -> int:
        self.history.breaches.clear()
        shown = [(number, b"%d" % number) for number in found]
        check_table(self.history, PLACE, shown, forgetting, end=len(self.sents), since_s=since_s)
        return len(self.history.breaches)


def test_the_newest_record_or_a_newer_one_exists() -> None:
    table = Table()
    for _ in range(3):
        table.write()
    table.write(acked=False)
    assert table.breaches(0, 1, 2) == table.breaches(2) == table.breaches(2, 3) == table.breaches(3) == 0
    assert table.breaches() == table.breaches(1) == table.breaches(0, 1) == 1


def test_a_record_is_at_its_acknowledged_offset_and_only_once() -> None:
    table = Table()
    table.write()
    table.history.acked(table.sents[0], 7)
    assert table.breaches(0) == 1
    table.history.acked(table.sents[0], 0)
    table.history.breaches.clear()
    check_table(table.history, PLACE, [(0, b"0"), (1, b"0")], NEVER, end=2)
    assert "twice" in table.history.breaches[0]


@pytest.mark.parametrize(("at_s", "acked", "may_go"), [(OLD, True, True), (OLD, False, True), (FRESH, True, False)])
def test_an_old_tombstone_may_be_removed_with_the_deleted_record(at_s: float, acked: bool, may_go: bool) -> None:
    table = Table()
    table.write()
    table.write()
    table.write(is_tombstone=True, at_s=at_s, acked=acked)
    forgetting = Forgetting(tombstones_s=10.0)
    assert table.breaches(2, forgetting=forgetting) == 0
    assert table.breaches(forgetting=forgetting) == table.breaches(0, forgetting=forgetting) == (not may_go)
    table.write()
    assert table.breaches(2, forgetting=forgetting) == acked, "a newer record is not the tombstone's, if it is newer"


def test_retention_may_delete_old_records() -> None:
    table = Table()
    table.write()
    forgetting = Forgetting(tombstones_s=math.inf, records_s=10.0)
    assert table.breaches(forgetting=forgetting) == 0
    table.write(at_s=FRESH)
    assert table.breaches(0, forgetting=forgetting) == 1


def test_uncommitted_records_do_not_count_and_are_not_visible() -> None:
    table = Table()
    table.write()
    table.write(transaction=SentTransaction("w", commit_asked=True, is_committed=False))
    table.write(transaction=SentTransaction("w"))
    assert table.breaches(0) == 0
    assert table.breaches(0, 1) == table.breaches(0, 2) == 1
    table.write(transaction=SentTransaction("w", commit_asked=True))
    assert table.breaches(0) == table.breaches(3) == 0, "nobody knows"
    table.write(transaction=SentTransaction("w", commit_asked=True, is_committed=True))
    assert table.breaches(0) == 1


def test_idle_keys_are_checked_during_a_run() -> None:
    table = Table()
    table.write()
    assert table.breaches(since_s=50.0) == 1
    table.write(at_s=60.0)
    assert table.breaches(since_s=50.0) == 0
    assert table.breaches(since_s=70.0) == 1
    table.write(acked=False)
    assert table.breaches(since_s=70.0) == 0


def test_a_marker_of_some_age_may_be_gone_on_a_replica_that_was_away() -> None:
    table = Table()
    table.write(at_s=OLD)
    table.write(at_s=FRESH)
    for sent in table.sents:
        SentTransaction("b", commit_asked=False).add([sent])
    assert table.breaches(0, 1, forgetting=Forgetting(tombstones_s=10.0, markers_s=10.0)) == 1
    assert table.breaches(0, 1, forgetting=Forgetting(tombstones_s=10.0)) == 2
