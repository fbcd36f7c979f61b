"""Cleaning a log that Apache Kafka 4.3.1 wrote leaves the same records as Kafka's own cleaner (`python -m
oracle.cleaning`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kpybroker.config import parse_config
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import Batch, read_records, split
from kpybroker.wire.records.record_removal import delete_horizon_ms
from tests.storage.compacting import batches_of, clean
from tests.storage.workshop import WORLD

GOLDEN = json.loads((Path(__file__).parent / "cleaned-4.3.1.json").read_text())
SETTINGS = parse_config().log_settings(GOLDEN["settings"])
Files = dict[str, str]


def said(batch: Batch) -> tuple[object, ...]:
    """All fields of a batch except its base timestamp, which Kafka sets to that of the first remaining record."""
    header = (batch.base_offset, batch.last_offset, batch.attributes, batch.leader_epoch, batch.max_timestamp)
    producer = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
    return (*header, *producer, delete_horizon_ms(batch), list(read_records(batch)))


def kafkas(files: Files) -> list[tuple[object, ...]]:
    content = b"".join(bytes.fromhex(files[name]) for name in sorted(files) if name.endswith(".log"))
    return [said(batch) for batch in split(content)]


def opened(path: Path, files: Files, cleaned_end: int) -> Log:
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(bytes.fromhex(content))
    log = Log.open(
        WORLD, str(path), "t", 0, SETTINGS, clean=True, cleaned_end=cleaned_end, producer_expiration_ms=1 << 60
    )
    log.advance(log.end)
    return log


def cleaned_at(files: Files) -> int:
    """The time at which Kafka cleaned the log, derived from the newest delete horizon."""
    horizons = [batch[8] for batch in kafkas(files) if batch[8] is not None]
    newest = max(horizons)  # type: ignore[type-var]
    assert isinstance(newest, int)
    return newest - SETTINGS.delete_retention_ms


@pytest.mark.parametrize("number", [0, 1])
def test_the_same_records_survive(number: int, tmp_path: Path) -> None:
    before, after = GOLDEN["rounds"][number]["before"], GOLDEN["rounds"][number]["after"]
    assert len(kafkas(after)) < len(kafkas(before)), "there was something to clean"
    cleaned_end = 0
    if number:
        first = GOLDEN["rounds"][0]["after"]
        cleaned_end = max(int(name[:20]) for name in first if name.endswith(".log"))
    log = opened(tmp_path / "t-0", before, cleaned_end)
    clean(log, cleaned_at(after))
    assert [said(batch) for batch in batches_of(log)] == kafkas(after)
    assert [segment.base_offset for segment in log.segments] == [
        int(name[:20]) for name in sorted(after) if name.endswith(".log")
    ]
    aborted = {
        name: bytes.fromhex(content) for name, content in after.items() if name.endswith(".txnindex") and content
    }
    log.close()
    ours = {file.name: file.read_bytes() for file in (tmp_path / "t-0").glob("*.txnindex")}
    assert ours == aborted
