"""The last stable offset and the aborted transactions of a log are correct after crashes and truncations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.sim.cluster.cluster import Process
from kpybroker.sim.cluster.setup import setup_of
from kpybroker.sim.simulation import Simulation
from kpybroker.storage.files.segment import SNAPSHOT, file_name
from kpybroker.storage.files.txn_index import AbortedTransaction, TxnIndex
from kpybroker.storage.log.log import Log
from kpybroker.storage.producers.transactions import NOT_NEEDED, VERIFYING_LIMIT, Verifications
from kpybroker.wire.records.batch import Batch, Record, encode_batch, split
from kpybroker.wire.records.markers import Marker, encode_marker, read_marker
from tests.storage.workshop import SMALL, WORLD, reopened

NOW_MS = WORLD.wall_ms()
FROM_KAFKA = bytes.fromhex(
    "0000000000000002000000420000000002110ef71c003000000000000001a2010db5ed000001a2010db5ed00000000000000000000ffffffff"
    "000000012000000008000000000c00000000000000"
)
"""An abort marker that Apache Kafka 4.3.1 wrote: offset 2, producer 0, coordinator epoch 0."""


def opened(path: Path, **facts: int) -> Log:
    settings = replace(SMALL, **{"segment_bytes": 1 << 20, **facts})
    return Log.open(WORLD, str(path / "t-0"), "t", 0, settings, clean=True)


def batch(producer: int, sequence: int, epoch: int = 0) -> Batch:
    records = [Record(0, NOW_MS, None, b"v")]
    facts = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    return split(encode_batch(records, transactional=True, **facts))[0]  # type: ignore[arg-type]


def append(log: Log, producer: int, sequence: int) -> int:
    return log.append([batch(producer, sequence)], 0, NOW_MS, verified=NOT_NEEDED).base_offset


def end(log: Log, producer: int, *, commits: bool, epoch: int = 0) -> int:
    marker = encode_marker(Marker(producer, epoch, 0, commits), NOW_MS)
    return log.append(split(marker), 0, NOW_MS, client=False).base_offset


def committed(log: Log) -> int:
    log.flush()
    log.advance(log.end)
    return log.last_stable


def aborted(log: Log) -> list[AbortedTransaction]:
    return [one for segment in log.segments for one in segment.aborted]


def test_a_marker_has_kafkas_bytes() -> None:
    (known,) = split(FROM_KAFKA)
    marker = read_marker(known)
    assert marker == Marker(0, 0, 0, commits=False)
    (ours,) = split(encode_marker(marker, known.max_timestamp))
    ours.patch(known.base_offset, known.leader_epoch)
    assert bytes(ours.view) == FROM_KAFKA


def test_the_index_has_kafkas_bytes(tmp_path: Path) -> None:
    index = TxnIndex(WORLD.disk, str(tmp_path / "0.txnindex"))
    index.add(AbortedTransaction(1, 2, 3, 4))
    index.save()
    assert (tmp_path / "0.txnindex").read_bytes() == b"\0\0" + b"".join(n.to_bytes(8, "big") for n in (1, 2, 3, 4))
    index.drop()
    assert list(index) == [(1, 2, 3, 4)]
    index.cut(3)
    assert not (tmp_path / "0.txnindex").exists()
    (tmp_path / "0.txnindex").write_bytes(b"\0\1" + bytes(32))
    index.drop()
    with pytest.raises(Damage):
        list(index)


def test_the_last_stable_offset_is_the_first_undecided_one(tmp_path: Path) -> None:
    log = opened(tmp_path)
    first, second = append(log, 1, 0), append(log, 2, 0)
    assert committed(log) == first
    end(log, 1, commits=True)
    log.flush()
    log.advance(log.end - 1)
    assert log.last_stable == first, "its marker may still be lost"
    assert committed(log) == second
    end(log, 2, commits=False)
    assert committed(log) == log.end
    assert aborted(log) == [(2, second, 3, 4)]


def test_transactional_records_outside_of_a_transaction_are_refused(tmp_path: Path) -> None:
    log = opened(tmp_path)

    def refused(wanted: ErrorCode, of: Batch, verified: object = None) -> None:
        with pytest.raises(KafkaError) as refusal:
            log.append([of], 0, NOW_MS, verified=verified)  # type: ignore[arg-type]
        assert refusal.value.code == wanted

    refused(ErrorCode.INVALID_TXN_STATE, batch(1, 0))
    asked = log.producers.verify(1, 0, 0, NOW_MS, bumps=True)
    assert asked is log.producers.verify(1, 0, 1, NOW_MS, bumps=True), "both share one verification"
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, batch(1, 1), asked)
    end(log, 1, commits=False)
    refused(ErrorCode.INVALID_TXN_STATE, batch(1, 0), asked)
    asked = log.producers.verify(1, 0, 0, NOW_MS, bumps=True)
    log.append([batch(1, 0)], 0, NOW_MS, verified=asked)
    assert log.producers.verify(1, 0, 1, NOW_MS, bumps=True) is None
    log.append([batch(1, 1)], 0, NOW_MS)
    plain = encode_batch([(None, b"v")], timestamp_ms=NOW_MS, producer_id=1, producer_epoch=0, base_sequence=2)
    refused(ErrorCode.INVALID_TXN_STATE, split(plain)[0])
    assert log.append([batch(1, 1)], 0, NOW_MS).base_offset == 2, "a duplicate has the offset of the first"


def test_the_number_of_pending_verifications_is_limited() -> None:
    verifications = Verifications()
    for producer in range(VERIFYING_LIMIT + 1):
        verifications.begin(producer, 0, 0, NOW_MS, bumps=False)
    assert verifications.get(0) is None
    assert verifications.get(VERIFYING_LIMIT) is not None
    verifications.expire(NOW_MS + 1000, 1000)
    assert verifications.get(VERIFYING_LIMIT) is None


@pytest.mark.parametrize("torn", [(), ("newest",), ("newest", "oldest")])
def test_producer_state_never_begins_below_the_first_segment(tmp_path: Path, torn: tuple[str, ...]) -> None:
    """Retention deletes a marker, and a power failure restores the snapshot from before it and damages the newer
    one."""

    def append_plain(to: Log, sequence: int) -> int:
        records = [Record(0, NOW_MS, None, b"v")]
        content = encode_batch(records, producer_id=3, producer_epoch=0, base_sequence=sequence)
        return to.append(split(content), 0, NOW_MS).base_offset

    log = opened(tmp_path)
    append_plain(log, 0)
    append(log, 1, 0)
    second = append(log, 2, 0)
    log.roll()
    oldest = Path(log.directory) / file_name(log.end, SNAPSHOT)
    was = oldest.read_bytes()
    end(log, 1, commits=False)
    append(log, 2, 1)
    append_plain(log, 1)
    assert committed(log) == second
    log.roll()
    newest = Path(log.directory) / file_name(log.end, SNAPSHOT)
    undecided = append(log, 2, 2)
    committed(log)
    log.advance_start(undecided)
    assert log.apply_retention(NOW_MS) == 2
    log.close()
    oldest.write_bytes(was[:4] if "oldest" in torn else was)
    newest.write_bytes(newest.read_bytes()[:4] if "newest" in torn else newest.read_bytes())
    again = reopened(log, clean=False, recovery_point=0)
    assert (again.start, again.end) == (undecided, undecided + 1)
    assert not again.producers.has_open(1, 0)
    assert again.producers.has_open(2, 0)
    assert committed(again) == undecided
    assert end(again, 2, commits=True) == undecided + 1
    assert committed(again) == again.end
    assert append_plain(again, 2) == undecided + 2, "the batches between the snapshots are not a gap"


class Story:
    """A log with random transactions, and a simple model of them."""

    def __init__(self, log: Log, random: Random) -> None:
        self.log, self.random = log, random
        self.events: list[tuple[int, int, str]] = []
        """(offset, producer, what)"""
        self.epochs: dict[int, int] = {}

    def step(self) -> None:
        producer = self.random.randrange(4)
        if self.random.random() < 0.3:
            commits = self.random.random() < 0.5
            self.events.append((end(self.log, producer, commits=commits), producer, "commit" if commits else "abort"))
        else:
            known = self.log.producers.get(producer)
            sequence = known.last_sequence + 1 if known is not None else 0
            self.events.append((append(self.log, producer, sequence), producer, "data"))
        if self.random.random() < 0.15:
            self.log.roll()

    def check(self) -> None:
        assert committed(self.log) == self.stable()
        assert [(one.producer_id, one.first_offset, one.last_offset) for one in aborted(self.log)] == self.aborted()
        for _ in range(5):
            offset = self.random.randrange(self.log.end + 1)
            self._check_read(offset)

    def _check_read(self, offset: int) -> None:
        records = self.log.read(offset, 300, upper=self.log.end, min_one=True)
        if not records:
            return
        upper = split(bytes(records))[-1].next_offset
        found = {(one.producer_id, one.first_offset) for one in self.log.aborted_within(offset, records)}
        needed = {(who, first) for who, first, last in self.aborted() if first < upper and last >= offset}
        assert found == needed

    def _open(self) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
        begun: dict[int, int] = {}
        gone = []
        for offset, producer, what in self.events:
            if what == "data":
                begun.setdefault(producer, offset)
            elif producer in begun:
                first = begun.pop(producer)
                if what == "abort":
                    gone.append((producer, first, offset))
        return begun, gone

    def stable(self) -> int:
        return min([*self._open()[0].values(), self.log.end])

    def aborted(self) -> list[tuple[int, int, int]]:
        return self._open()[1]

    def truncate(self) -> None:
        self.log.flush()
        offset = self.random.randint(self.log.end // 2, self.log.end)
        self.log.truncate_to(offset)
        self.events = [event for event in self.events if event[0] < offset]

    def kill(self) -> None:
        self.log.flush()
        self.log = reopened(self.log, clean=False, recovery_point=self.random.choice((0, self.log.end // 2)))

    def stop(self) -> None:
        self.log.close()
        self.log = reopened(self.log, clean=True)


@pytest.mark.parametrize("seed", range(25))
def test_no_stop_crash_or_truncation_changes_decided_transactions(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    story = Story(opened(tmp_path, segment_bytes=random.choice((400, 1000, 1 << 20))), random)
    for _ in range(120):
        story.step()
        if random.random() < 0.06:
            getattr(story, random.choice(("truncate", "kill", "stop")))()
            story.check()
    story.check()


def test_after_a_clean_shutdown_a_power_loss_removes_nothing_from_the_index() -> None:
    for seed in range(20):
        machine = Simulation(setup_of(0)).machines[0]
        world = Process(machine, 1, machine.storage).world
        world.disk.mkdir("/data/t-0")
        world.disk.sync_directory_blocking("/")
        log = Log.open(world, "/data/t-0", "t", 0, SMALL, clean=True)
        append(log, 1, 0)
        end(log, 1, commits=False)
        committed(log)
        known = aborted(log)
        log.close()
        machine.storage.lose_power(Random(seed))
        again = Log.open(world, "/data/t-0", "t", 0, SMALL, clean=True, recovery_point=log.end)
        assert known
        assert aborted(again) == known


def test_a_power_loss_removes_nothing_from_a_segment_that_ends_at_the_recovery_point(tmp_path: Path) -> None:
    """Its records were synced while it was the active segment, but its indexes are synced only with the next sync."""
    log = opened(tmp_path, segment_bytes=400)
    append(log, 1, 0)
    end(log, 1, commits=False)
    for sequence in range(20):
        append(log, 2, sequence)
        end(log, 2, commits=True)
    log.flush()
    boundary = log.segments[1].base_offset
    known = aborted(log)
    assert known
    log.close()
    (tmp_path / "t-0" / "00000000000000000000.txnindex").unlink()
    again = Log.open(WORLD, str(tmp_path / "t-0"), "t", 0, log.settings, clean=False, recovery_point=boundary)
    assert aborted(again) == known
    assert again.files.has_sealed, "and now it is synced"
    again.close()
