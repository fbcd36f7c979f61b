"""Refuses a directory with a metadata log that requires a newer broker, before any file in it is changed.

The check reads feature levels and record types from the log. It ignores damage, which is reported when the log is
opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError, Damage, KafkaError, MalformedFrame
from kpybroker.raft.log.snapshots import Snapshots
from kpybroker.storage.dirs.formatting import BOOTSTRAP_CHECKPOINT, METADATA_DIRECTORY
from kpybroker.storage.files.file_pool import FilePool
from kpybroker.storage.files.segment import LOG, Segment
from kpybroker.wire.codec.message import key_of
from kpybroker.wire.records.batch import HEADER_BYTES, Batch, header_at, read_records
from kpybroker.wire.records.snapshot import KRAFT_VERSION, read_control
from kpybroker.wire.stored.metadata import FeatureLevelRecord, frame_of, is_known, unframe_record
from kpybroker.world import World

METADATA_VERSION, KRAFT = "metadata.version", "kraft.version"
TOOL = "kafka-features.sh --bootstrap-server HOST:PORT"
RELEASE = "4.3"
FILE_LIMIT_BYTES = 1 << 32
SCAN_BYTES = 1 << 20

Levels = dict[str, int]


def check_served(world: World, config: BrokerConfig, supported: Mapping[str, tuple[int, int]]) -> None:
    """Raises ConfigError if the metadata log contains a feature level or a record type that is not supported."""
    directory = config.metadata_log_dir
    path = f"{directory}/{METADATA_DIRECTORY}"
    levels: Levels = {}
    try:
        has_begun = world.disk.exists(path) and _read_log(world, config, path, levels)
        bootstrap = f"{directory}/{BOOTSTRAP_CHECKPOINT}"
        if not has_begun and world.disk.exists(bootstrap):
            for batch in _batches_of(world, bootstrap):
                _note(batch, levels, bootstrap)
    except (OSError, Damage, KafkaError, MalformedFrame):
        return  # the log is damaged rather than newer: opening it reports the damage
    wrong = _unserved(levels, supported)
    if wrong:
        raise ConfigError(_refusal(directory, levels, wrong, supported, has_begun=has_begun))


def check_joined(levels: Mapping[str, int], supported: Mapping[str, tuple[int, int]]) -> None:
    """Raises ConfigError if the cluster that this node is about to join has a feature level that is not supported."""
    wrong = _unserved(levels, supported)
    if wrong:
        raise ConfigError(
            f"this node cannot join the cluster: {_shown(levels, wrong, supported)}; upgrade this node, or run "
            f"`{'` and `'.join(_commands(levels, wrong, supported))}` before it joins"
        )


def _unserved(levels: Mapping[str, int], supported: Mapping[str, tuple[int, int]]) -> list[str]:
    """The features whose level is not supported, in order."""
    spans = {name: supported.get(name, (0, 0)) for name in levels}
    return sorted(name for name, level in levels.items() if not spans[name][0] <= level <= spans[name][1])


def _shown(levels: Mapping[str, int], wrong: list[str], supported: Mapping[str, tuple[int, int]]) -> str:
    told = []
    for name in wrong:
        low, high = supported.get(name, (0, 0))
        span = f"{high}" if low == high else f"{low} to {high}"
        told.append(f"{name} is at level {levels[name]}, but only {span} is supported")
    return "; ".join(told)


def _commands(levels: Mapping[str, int], wrong: list[str], supported: Mapping[str, tuple[int, int]]) -> list[str]:
    """The commands that set supported levels. Empty if none can: kraft.version is never lowered."""
    lowered = _lowered(wrong, supported)
    commands = [f"{TOOL} downgrade {lowered}"] if lowered else []
    if METADATA_VERSION in wrong:
        direction = "down" if levels[METADATA_VERSION] > supported[METADATA_VERSION][1] else "up"
        commands.insert(0, f"{TOOL} {direction}grade --release-version {RELEASE}")
    return commands


def _lowered(wrong: list[str], supported: Mapping[str, tuple[int, int]]) -> str:
    """The options of kafka-features.sh and kafka-storage.sh for the levels that are too high."""
    levels = ((name, supported.get(name, (0, 0))[1]) for name in wrong if name not in (METADATA_VERSION, KRAFT))
    return " ".join(f"--feature {name}={level}" for name, level in levels)


def _refusal(
    directory: str, levels: Levels, wrong: list[str], supported: Mapping[str, tuple[int, int]], *, has_begun: bool
) -> str:
    commands = _commands(levels, wrong, supported)
    if not commands:
        way = "use a newer kpybroker, or another directory (log.dirs)"
    elif has_begun:
        way = f"start the broker that wrote it, run `{'` and `'.join(commands)}`, stop it, and start this one again"
    else:
        release = [f"--release-version {RELEASE}"] if METADATA_VERSION in wrong else []
        options = " ".join(filter(None, (*release, _lowered(wrong, supported))))
        way = (
            "no broker was started on it yet, so format it again, with `kpybroker storage format` or with "
            f"`kafka-storage.sh format {options}`"
        )
    return f"{directory} cannot be used: {_shown(levels, wrong, supported)}; {way}. Nothing was changed"


def _read_log(world: World, config: BrokerConfig, path: str, levels: Levels) -> bool:
    """Note the levels in the newest snapshot and in the log after it. Returns False if neither contains a data
    record."""
    end = 0
    for snapshot_end, _, name in reversed(Snapshots(world, config, path).names()):
        found = dict(levels)
        try:
            for batch in _batches_of(world, f"{path}/{name}"):
                _note(batch, found, f"{path}/{name}")
        except (Damage, KafkaError, MalformedFrame):
            continue
        levels.update(found)
        end = snapshot_end
        break
    has_begun = end > 0
    pool = FilePool(4)
    for name in world.disk.list(path):
        size = world.disk.path_size(f"{path}/{name}") if name.endswith(LOG) else 0
        if not size or not name[: -len(LOG)].isdecimal():
            continue
        segment = Segment(world.disk, pool, path, int(name[: -len(LOG)]), size)
        try:
            for at, _, next_offset, size_bytes in segment.walk(0, SCAN_BYTES):
                if next_offset > end:
                    batch = segment.batch_at(at, size_bytes)
                    if not batch.crc_ok():
                        return has_begun
                    _note(batch, levels, segment.path + LOG)
                    has_begun |= not batch.is_control
        finally:
            segment.drop_files()
    return has_begun


def _batches_of(world: World, path: str) -> Iterator[Batch]:
    """The batches of a snapshot. Raises OSError, Damage."""
    handle = world.disk.open(path)
    try:
        view = memoryview(world.disk.pread(handle, min(world.disk.size(handle), FILE_LIMIT_BYTES), 0))
    finally:
        world.disk.close(handle)
    at = 0
    while at < len(view):
        size = header_at(view, at)[1] if len(view) - at >= HEADER_BYTES else 0
        if size < HEADER_BYTES or at + size > len(view):
            raise Damage(f"{path}: there is no batch at byte {at}")
        batch = Batch(view[at : at + size])
        if not batch.crc_ok():
            raise Damage(f"{path}: the batch at byte {at} has a wrong CRC")
        yield batch
        at += size


def _note(batch: Batch, levels: Levels, where: str) -> None:
    """Note the levels that a batch sets. Raises ConfigError for an unknown record type."""
    for record in read_records(batch):
        if batch.is_control:
            kind, message = read_control(record)
            if kind == KRAFT_VERSION:
                levels[KRAFT] = message.kraft_version
            continue
        frame, key, version = frame_of(record.value or b"")
        if not is_known(frame, key, version):
            raise ConfigError(
                f"{where} has a metadata record of type {key}, version {version}, at offset {record.offset}, which "
                "this version of kpybroker does not support: a newer Apache Kafka wrote it; use a newer kpybroker, or "
                "another directory (log.dirs). Nothing was changed"
            )
        if key == key_of(FeatureLevelRecord):
            level = unframe_record(record.value or b"")
            levels[level.name] = level.feature_level
