"""Tests that the wall clock is used only for times that are stored or sent. The test lists every reader with its
reason; all other code uses the steady clock."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kpybroker.config import parse_config
from kpybroker.raft.log.snapshots import Snapshots
from kpybroker.world.real import RealWorld

PACKAGE = Path(__file__).parent.parent / "kpybroker"
READS_WALL_TIME = {
    "cli/checking.py": "the name of a directory that is set aside",
    "serving/produce/validation.py": "log append time, and how far a record's timestamp may be from it",
    "serving/produce/append.py": "log append time, and how far a record's timestamp may be from it",
    "serving/produce/single.py": "log append time, and how far a record's timestamp may be from it",
    "serving/shares/places.py": "where by_duration begins in a log: records have wall time",
    "serving/produce/transactional.py": "the age of a verification, which expires as producer ids do",
    "handlers/txn_offset_commit.py": "the age of a verification, which expires as producer ids do",
    "client/dialer.py": "whether a client's certificate has expired",
    "security/tls/contexts.py": "whether a certificate has expired",
    "server/metrics/access.py": "whether a certificate has expired",
    "server/requests/recorder.py": "when a recorded request arrived",
    "server/connections/token_checks.py": "whether a certificate has expired",
    "raft/log/metadata_log.py": "timestamps of batches, retention",
    "raft/log/snapshots.py": "timestamps of snapshots, their retention, and the age of replayed records",
    "raft/duties/replica_progress.py": "DescribeQuorum returns wall time",
    "replication/node/chores.py": "retention",
    "replication/partition/state_log.py": "timestamps of batches",
    "replication/partition/txn_markers.py": "timestamps of markers",
    "machine/runner.py": "times that machines store and return: Moment",
    "scheduled/leader.py": "when records are due, and timestamps of batches",
    "scheduled/delivery_logs.py": "how late records are",
    "storage/dirs/cleaner.py": "delete horizons and compaction lags",
    "storage/dirs/log_dir.py": "creation times of segments, expiry of producer ids",
    "storage/dirs/formatting.py": "timestamps of snapshots",
    "storage/log/log.py": "segment.ms, expiry of producer ids",
    "storage/log/log_files.py": "retention, expiry of producer ids",
}
WORLDS = ("world/", "sim/")
HOUR_MS = 3_600_000


def test_no_other_module_reads_the_wall_clock() -> None:
    found = {
        name
        for path in PACKAGE.rglob("*.py")
        if not (name := path.relative_to(PACKAGE).as_posix()).startswith(WORLDS)
        and re.search(r"\bwall_ms\(\)", path.read_text())
    }
    assert found == set(READS_WALL_TIME)


class SetClocks(RealWorld):
    """A World whose clocks stand still until they are set."""

    steady, ahead = 5 * HOUR_MS, 1_700_000_000_000

    def steady_ms(self) -> int:
        return self.steady

    def wall_ms(self) -> int:
        return self.steady + self.ahead


@pytest.mark.parametrize("jump_ms", [-10 * HOUR_MS, -1, 1, 10 * HOUR_MS])
def test_a_metadata_snapshot_comes_at_its_interval(jump_ms: int) -> None:
    world = SetClocks(1)
    snapshots = Snapshots(world, parse_config({"metadata.log.max.snapshot.interval.ms": str(HOUR_MS)}), "/nowhere")
    snapshots.appended(10, world.wall_ms())
    world.ahead += jump_ms
    world.steady += HOUR_MS - 1
    assert not snapshots.is_due()
    world.steady += 1
    assert snapshots.is_due()


@pytest.mark.parametrize("written_ms", [-10 * HOUR_MS, 0, 10 * HOUR_MS])
def test_records_of_an_earlier_run_wait_no_longer_than_the_interval(written_ms: int) -> None:
    """The clock of the earlier run may have been wrong."""
    world = SetClocks(1)
    snapshots = Snapshots(world, parse_config({"metadata.log.max.snapshot.interval.ms": str(HOUR_MS)}), "/nowhere")
    snapshots.appended(10, world.wall_ms() + written_ms)
    assert snapshots.is_due() == (written_ms < 0)
    world.steady += HOUR_MS
    assert snapshots.is_due()
