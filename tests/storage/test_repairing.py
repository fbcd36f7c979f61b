"""Damage is found and reported. After a repair there are no findings, and every undamaged batch can be read."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random

import pytest

from kpybroker.storage.log.log import Log
from kpybroker.storage.repair.checking import Checked, Marks, check_partition
from kpybroker.storage.repair.repairing import repair_partition, way_out
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import Batch, split
from tests.storage.old_messages import message
from tests.storage.workshop import SMALL, WORLD, History

CLEAN = Marks(clean=True, recovery_points={}, starts={}, cleaned={})


def lived(path: Path, seed: int, steps: int = 60) -> History:
    """A log with a random history, after a clean shutdown."""
    history = History.of(path, seed)
    for _ in range(steps):
        history.step()
    history.flush()
    history.log.close()
    return history


def key_of(history: History) -> TopicPartition:
    topic, _, number = history.log.directory.rpartition("/")[2].rpartition("-")
    return topic, int(number)


def marks_of(history: History) -> Marks:
    return CLEAN._replace(starts={key_of(history): history.log.start})


def checked(history: History) -> Checked:
    return check_partition(WORLD, str(Path(history.log.directory).parent), key_of(history), marks_of(history))


def repaired(history: History, found: Checked) -> int:
    root = Path(history.log.directory).parent
    return repair_partition(WORLD, str(root), key_of(history), found, marks_of(history), f"{root}.aside")


def reread(history: History, *, clean: bool, end: int = 0) -> Log:
    """The log after the next start. All records below `end` had been on disk."""
    log = history.log
    return Log.open(
        WORLD, log.directory, "t", 0, SMALL, clean=clean, recovery_point=end, log_start=log.start, synced_end=end
    )


def damage(random: Random, content: bytes) -> bytes:
    """Flip a bit, remove bytes, or insert bytes."""
    at = random.randrange(len(content) + 1)
    kind = random.choice(("flip", "flip", "cut", "insert"))
    if kind == "flip" and at < len(content):
        return content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]
    size = random.randrange(1, 200)
    if kind == "cut":
        return content[:at] + content[at + size :]
    return content[:at] + random.randbytes(size) + content[at:]


@pytest.mark.parametrize("seed", range(40))
def test_an_undamaged_log_has_no_findings(seed: int, tmp_path: Path) -> None:
    assert checked(lived(tmp_path, seed)).findings == []


@pytest.mark.parametrize("seed", range(150))
def test_undamaged_batches_can_be_read_after_a_repair(seed: int, tmp_path: Path) -> None:
    history, random = lived(tmp_path, seed), Random(seed)
    before = readable(reread(history, clean=True))
    files = sorted(file for file in Path(history.log.directory).iterdir() if file.stat().st_size)
    logs = [file for file in files if file.suffix == ".log"]
    for _ in range(random.choice((1, 1, 3))):
        file = random.choice(logs if logs and random.random() < 0.6 else files)
        if file.name != "partition.metadata":
            file.write_bytes(damage(random, file.read_bytes()))
    left = b"\xff".join(file.read_bytes() for file in logs)
    untouched = {content(batch) for batch in before if batch in left}
    found = checked(history)
    end = repaired(history, found)
    assert checked(history).findings == []
    for clean in (True, False):
        log = reread(history, clean=clean, end=end)
        assert log.end == end
        after = readable(log)
        assert untouched <= {content(batch) for batch in after}
        assert {batch[17:] for batch in after} <= {batch[17:] for batch in before}, (
            "the bytes under the CRC are unchanged"
        )
        log.drop_files()


def readable(log: Log) -> list[bytes]:
    """All batches, read as a consumer reads them. There may be a gap at the end of the log."""
    found: list[Batch] = []
    offset = log.start
    for segment in log.segments:
        segment.index()
    while batches := split(bytes(part)) if (part := log.read(offset, 700, upper=log.end, min_one=True)) else []:
        found += batches
        offset = found[-1].next_offset
    return [bytes(batch.view) for batch in found]


def content(batch: bytes) -> bytes:
    """The batch without its leader epoch, which can be repaired only if the neighbouring batches show it."""
    return batch[:12] + batch[16:]


def first_log(history: History) -> tuple[Path, list[Batch]]:
    file = max(Path(history.log.directory).glob("*.log"), key=lambda file: file.stat().st_size)
    return file, split(file.read_bytes())


def test_a_finding_has_its_file_position_and_offset(tmp_path: Path) -> None:
    history = lived(tmp_path, 3)
    file, batches = first_log(history)
    at = batches[0].size_bytes
    content = bytearray(file.read_bytes())
    content[at + 70 if len(content) > at + 70 else -1] ^= 1
    file.write_bytes(content)
    (finding,) = checked(history).findings
    assert (finding.path, finding.position, finding.offset) == (str(file), at, batches[1].base_offset)
    assert "with a wrong CRC" in finding.text


@pytest.mark.parametrize(
    ("at", "said"), [(7, "it should be"), (11, "wrong length"), (15, "leader epoch"), (16, "magic")]
)
def test_header_fields_outside_the_crc_are_repaired(at: int, said: str, tmp_path: Path) -> None:
    history = lived(tmp_path, 3)
    file, batches = first_log(history)
    whole = file.read_bytes()
    content = bytearray(whole)
    content[batches[0].size_bytes + at] ^= 0x40
    file.write_bytes(content)
    found = checked(history)
    assert said in found.findings[0].text
    repaired(history, found)
    assert file.read_bytes() == whole


def test_nothing_is_deleted(tmp_path: Path) -> None:
    history = lived(tmp_path, 3)
    file, _ = first_log(history)
    spoiled = b"x" * 300 + file.read_bytes()[300:]
    file.write_bytes(spoiled)
    repaired(history, checked(history))
    aside = Path(f"{tmp_path}.aside") / Path(history.log.directory).name / file.name
    assert aside.read_bytes() == spoiled


@pytest.mark.parametrize("seed", range(30))
def test_messages_of_an_old_format_are_named_and_prevent_a_repair(seed: int, tmp_path: Path) -> None:
    """Wherever they are in the log, and whatever is damaged before or after them."""
    history, random = lived(tmp_path, seed), Random(seed)
    file, batches = first_log(history)
    content = file.read_bytes()
    at = random.choice([0, *itertools.accumulate(batch.size_bytes for batch in batches)])
    base = int(file.stem)
    magic = random.choice((0, 1))
    old = b"".join(message(base + index, magic, random.randbytes(random.randrange(200))) for index in range(3))
    before, after = content[:at], content[at:]
    if random.random() < 0.5:
        before = damage(random, before) if random.random() < 0.5 else before + random.randbytes(random.randrange(100))
    if random.random() < 0.5:
        after = damage(random, after)
    file.write_bytes(before + old + after)
    found = checked(history)
    named = [one for one in found.findings if f"messages of format {magic}" in one.text]
    assert [(one.path, one.position) for one in named] == [(str(file), len(before))]
    assert str(file) in (way_out(found, key_of(history)) or "")


def test_only_old_messages_are_no_other_finding(tmp_path: Path) -> None:
    """The log of a partition that Apache Kafka wrote before 0.11, after a clean stop."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    file = directory / f"{0:020}.log"
    file.write_bytes(b"".join(message(offset, 1) for offset in range(10)))
    marks = CLEAN._replace(recovery_points={("t", 0): 10})
    [found] = check_partition(WORLD, str(tmp_path), ("t", 0), marks).findings
    assert (found.path, found.position, found.offset) == (str(file), 0, 0)
    assert found.text == f"{file.stat().st_size} bytes of messages of format 1, which only Apache Kafka reads"
