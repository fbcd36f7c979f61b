"""If a directory needs a newer version of kpybroker, the error contains the reason, and the directory is not
changed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kpybroker.config import parse_config
from kpybroker.controller.features import SUPPORTED_FEATURES
from kpybroker.errors import ConfigError
from kpybroker.raft.log.feature_check import check_joined
from kpybroker.server.node import Node
from kpybroker.storage.dirs.formatting import METADATA_DIRECTORY
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.records.snapshot import KRAFT_VERSION, control_record, encode_snapshot
from kpybroker.wire.stored.metadata import FeatureLevelRecord, frame_record
from kpybroker.wire.stored.quorum import KRaftVersionRecord
from kpybroker.world.real import RealWorld

OTHER = FeatureLevelRecord(name="other.version", feature_level=1)
NEWER = FeatureLevelRecord(name="newer.version", feature_level=1)
UNKNOWN = b"\x01\xfa\x01\x00\x00"
"""The key of a record of type 250."""


def start(path: Path) -> None:
    """Start a node and stop it."""

    async def scenario() -> None:
        world = RealWorld(1)
        config = parse_config({"log.dirs": str(path), "listeners": "PLAINTEXT://127.0.0.1:0"})
        try:
            node = await Node.start(world, config)
            await node.stop()
        finally:
            world.close()

    asyncio.run(scenario())


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def append(path: Path, value: bytes | None, control: Any = None) -> Path:
    """Append a record to the metadata log, as a newer Apache Kafka might do."""
    log = max((path / METADATA_DIRECTORY).glob("*.log"))
    rows = [(None, value)] if control is None else [control]
    end = end_of(log)
    with log.open("ab") as file:
        file.write(encode_batch(rows, base_offset=end, timestamp_ms=1, leader_epoch=9, control=control is not None))
    return log


def end_of(log: Path) -> int:
    from kpybroker.wire.records.batch import split

    return split(log.read_bytes())[-1].next_offset


def refusal(path: Path) -> str:
    before = contents(path)
    with pytest.raises(ConfigError) as refused:
        start(path)
    assert contents(path) == before
    assert str(refused.value).endswith("Nothing was changed")
    return str(refused.value)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    start(path)
    return path


def test_unserved_features_are_named_with_the_command_that_lowers_them(data: Path) -> None:
    append(data, frame_record(OTHER))
    append(data, frame_record(NEWER))
    said = refusal(data)
    assert (
        "newer.version is at level 1, but only 0 is supported; other.version is at level 1, but only 0 is supported"
        in said
    )
    assert (
        "run `kafka-features.sh --bootstrap-server HOST:PORT downgrade --feature newer.version=0 "
        "--feature other.version=0`" in said
    )
    append(data, frame_record(FeatureLevelRecord(name="other.version", feature_level=0)))
    assert "other.version" not in refusal(data)
    append(data, frame_record(FeatureLevelRecord(name="newer.version", feature_level=0)))
    start(data)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            FeatureLevelRecord(name="metadata.version", feature_level=31),
            "metadata.version is at level 31, but only 30 is",
        ),
        (FeatureLevelRecord(name="metadata.version", feature_level=28), "upgrade --release-version 4.3"),
        (
            FeatureLevelRecord(name="group.version", feature_level=2),
            "group.version is at level 2, but only 0 to 1 is supported",
        ),
        (FeatureLevelRecord(name="new.version", feature_level=1), "new.version is at level 1, but only 0 is supported"),
    ],
)
def test_a_level_above_the_supported_ones(record: FeatureLevelRecord, said: str, data: Path) -> None:
    append(data, frame_record(record))
    assert said in refusal(data)


def test_a_record_of_an_unknown_kind(data: Path) -> None:
    log = append(data, UNKNOWN)
    assert f"{log} has a metadata record of type 250, version 0, at offset {end_of(log) - 1}" in refusal(data)


def test_a_later_version_of_the_quorum(data: Path) -> None:
    append(data, None, control_record(KRAFT_VERSION, KRaftVersionRecord(kraft_version=2)))
    assert "kraft.version is at level 2, but only 0 to 1 is supported; use a newer kpybroker" in refusal(data)


def test_a_snapshot_is_checked_too(data: Path) -> None:
    end = end_of(max((data / METADATA_DIRECTORY).glob("*.log")))
    snapshot = data / METADATA_DIRECTORY / f"{end:020d}-0000000009.checkpoint"
    levels = [FeatureLevelRecord(name="metadata.version", feature_level=30), NEWER]
    snapshot.write_bytes(b"".join(encode_snapshot(levels, epoch=9, now_ms=1, last_timestamp_ms=1)))
    assert "downgrade --feature newer.version=0`" in refusal(data)


def test_a_directory_that_was_only_formatted(data: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / ".lock").touch()
    for name in ("meta.properties",):
        (fresh / name).write_bytes((data / name).read_bytes())
    for level, options in ((30, ""), (31, "--release-version 4.3 ")):
        levels = [FeatureLevelRecord(name="metadata.version", feature_level=level), NEWER]
        bootstrap = b"".join(encode_snapshot(levels, epoch=0, now_ms=1, last_timestamp_ms=1))
        (fresh / "bootstrap.checkpoint").write_bytes(bootstrap)
        way = f"`kpybroker storage format` or with `kafka-storage.sh format {options}--feature newer.version=0`"
        assert f"format it again, with {way}. Nothing was changed" in refusal(fresh)


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        (
            {"metadata.version": 31},
            "metadata.version is at level 31, but only 30 is supported; upgrade this node, or run "
            "`kafka-features.sh --bootstrap-server HOST:PORT downgrade --release-version 4.3` before it joins",
        ),
        (
            {"metadata.version": 30, "new.version": 1, "group.version": 2},
            "group.version is at level 2, but only 0 to 1 is supported; new.version is at level 1, but only 0 is "
            "supported; upgrade this node, or run `kafka-features.sh --bootstrap-server HOST:PORT downgrade --feature "
            "group.version=1 --feature new.version=0` before it joins",
        ),
    ],
)
def test_a_cluster_that_is_newer_than_the_node_that_joins(levels: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_joined(levels, SUPPORTED_FEATURES)
    assert str(refused.value) == f"this node cannot join the cluster: {said}"
    check_joined({name: high for name, (_, high) in SUPPORTED_FEATURES.items()}, SUPPORTED_FEATURES)


def test_a_later_version_of_meta_properties(data: Path) -> None:
    meta = data / "meta.properties"
    meta.write_text(meta.read_text().replace("version=1", "version=2"))
    before = contents(data)
    with pytest.raises(ConfigError, match="has version 2, but this kpybroker reads only version 1"):
        start(data)
    assert contents(data) == before
