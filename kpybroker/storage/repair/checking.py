"""`kpybroker storage check`: checks every file in the directory of a stopped broker, without changing any.

Damage that a crash leaves and the next start repairs (indexes above the recovery point) is not reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kpybroker.errors import Damage, KafkaError, MalformedFrame
from kpybroker.storage.dirs.directory import decode_id, read_properties
from kpybroker.storage.dirs.formatting import META_PROPERTIES, METADATA_DIRECTORY
from kpybroker.storage.dirs.log_dir import CLEAN_SHUTDOWN
from kpybroker.storage.files.checkpoint_files import (
    CLEANED,
    HIGH_WATERMARKS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    read_file,
    read_offsets,
    read_topic_id,
)
from kpybroker.storage.files.epochs import FILE_NAME as EPOCHS
from kpybroker.storage.files.epochs import LeaderEpochs
from kpybroker.storage.files.segment import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, file_name
from kpybroker.storage.producers.producers import ProducerStates
from kpybroker.storage.repair.examining import ENDLESS, Examined, examine
from kpybroker.storage.repair.index_checking import check_offsets, check_times, check_transactions
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import read_records
from kpybroker.wire.records.snapshot import decode_snapshot
from kpybroker.wire.stored.metadata import unframe_record
from kpybroker.world import World

PARTITION = re.compile(r"(.+)-(\d{1,10})")
CHECKPOINTS = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANED)


class Finding(NamedTuple):
    """One finding. `position` is the position in the file, or -1 for the whole file. `offset` is -1 if there is
    none."""

    path: str
    position: int
    offset: int
    text: str


@dataclass
class Checked:
    """The findings of one partition, and the work of a repair: segments to rewrite and files to set aside."""

    path: str
    findings: list[Finding] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Segment files that contain damaged batches, or bytes that are not a batch."""
    emptied: list[int] = field(default_factory=list)
    """The base offsets of empty segments, except the last segment."""
    unreadable: list[str] = field(default_factory=list)
    """Unreadable files that recovery can rebuild."""
    lost_end: int = -1
    """The end offset of the batches if it is below the recovery point, otherwise -1."""
    old_format: str = ""
    """The first segment file with messages of an old format, which are undamaged."""
    has_hole: bool = False
    """Whether there are valid batches after damaged ones."""
    epochs: LeaderEpochs | None = None
    sure: int = 0
    """The next start rebuilds the indexes of the segments from this offset on. The leader epoch checkpoint may lack the
    epochs of these segments."""

    def known_epoch(self, base: int) -> Callable[[int], int]:
        """A function that returns the leader epoch of an offset in the segment with this base offset; -1 if unknown."""
        return self.epochs.epoch_at if self.epochs is not None and base < self.sure else _nothing_known

    def add(self, path: str, text: str, position: int = -1, offset: int = -1) -> None:
        """Add a finding."""
        self.findings.append(Finding(path, position, offset, text))


class Marks(NamedTuple):
    """The contents of the directory's checkpoints."""

    clean: bool
    recovery_points: dict[TopicPartition, int]
    starts: dict[TopicPartition, int]
    cleaned: dict[TopicPartition, int]


def check_directory(world: World, path: str) -> tuple[Checked, Marks]:
    """Check meta.properties and the checkpoints of a directory, and return their contents. Raises OSError."""
    found = Checked(path)
    try:
        meta = read_properties(world, f"{path}/{META_PROPERTIES}")
        if meta.get("version") != "1" or not meta.get("node.id", "").isdecimal() or not meta.get("cluster.id"):
            raise ValueError("expected version 1 with node.id and cluster.id")
        decode_id(meta.get("directory.id", ""))
    except (FileNotFoundError, Damage, ValueError) as error:
        found.add(f"{path}/{META_PROPERTIES}", f"cannot be used: {error}; write it by hand, or restore it")
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for name in CHECKPOINTS:
        try:
            offsets[name] = read_offsets(world.disk, f"{path}/{name}")
        except Damage as damage:
            offsets[name] = {}
            found.add(f"{path}/{name}", f"cannot be read: {damage}")
            found.unreadable.append(f"{path}/{name}")
    clean = world.disk.exists(f"{path}/{CLEAN_SHUTDOWN}")
    return found, Marks(clean, offsets[RECOVERY_POINTS], offsets[LOG_STARTS], offsets[CLEANED])


def partitions_of(world: World, path: str, topic: str | None, partition: int | None) -> list[TopicPartition]:
    """The requested partitions in a directory, including the metadata log."""
    found = []
    for name in world.disk.list(path):
        match = PARTITION.fullmatch(name)
        if match is None or not world.disk.is_directory(f"{path}/{name}"):
            continue
        key = match[1], int(match[2])
        if topic in (None, key[0]) and partition in (None, key[1]):
            found.append(key)
    return found


def check_partition(
    world: World, path: str, key: TopicPartition, marks: Marks, progress: Callable[[int], None] = lambda size: None
) -> Checked:
    """Check all files of one partition. `progress` is called with the number of bytes read. Raises OSError."""
    directory = f"{path}/{key[0]}-{key[1]}"
    is_metadata = directory.endswith(f"/{METADATA_DIRECTORY}")
    found = Checked(directory)
    names = world.disk.list(directory)
    bases = sorted(int(name[: -len(LOG)]) for name in names if name.endswith(LOG) and name[: -len(LOG)].isdecimal())
    found.epochs = epochs = _epochs(world, directory, names, found)
    point = marks.recovery_points.get(key, 0)
    found.sure = ENDLESS if marks.clean and not is_metadata else max([0, *(base for base in bases if base < point)])
    cleaned_end = marks.cleaned.get(key, 0)
    open_transactions: dict[int, int] = {}
    epoch = -1
    for number, base in enumerate(bases):
        limit = bases[number + 1] if number + 1 < len(bases) else ENDLESS
        file = f"{directory}/{file_name(base, LOG)}"
        data = _whole(world, file)
        is_sure = base < found.sure
        examined = examine(data, base, limit, epoch, found.known_epoch(base))
        epoch = examined.epoch
        _tell_flaws(found, file, examined, is_last=number + 1 == len(bases))
        if is_metadata:
            _check_metadata_records(found, file, examined)
        aborted = check_transactions(examined, open_transactions)
        if not examined.flaws and is_sure and data:
            _check_indexes(world, found, directory, base, examined, is_last=limit == ENDLESS)
            if base >= cleaned_end:
                _check_aborted(world, found, directory, base, aborted)
        if epochs is not None and is_sure and not examined.flaws:
            _check_epochs(found, directory, examined, epochs)
        if not data and limit < ENDLESS and base >= cleaned_end and not is_metadata and (marks.clean or base < point):
            found.add(file, f"is empty, but should contain the batches from offset {base} to {limit}", offset=base)
            found.emptied.append(base)
        if limit == ENDLESS and not is_metadata and marks.starts.get(key, 0) <= examined.next_offset < point:
            end = found.lost_end = examined.next_offset
            text = f"ends at offset {end}, but the recovery point says that everything below {point} was on the disk"
            found.add(file, text, offset=end)
        progress(len(data))
    _check_small_files(world, found, directory, names)
    return found


def _nothing_known(offset: int) -> int:
    return -1


def _whole(world: World, path: str) -> bytes:
    handle = world.disk.open(path)
    try:
        return world.disk.pread(handle, world.disk.size(handle), 0)
    finally:
        world.disk.close(handle)


def _epochs(world: World, directory: str, names: list[str], found: Checked) -> LeaderEpochs | None:
    epochs = LeaderEpochs(world.disk, directory)
    if EPOCHS not in names:
        return None
    try:
        epochs.load()
    except (Damage, ValueError) as damage:
        found.add(f"{directory}/{EPOCHS}", f"cannot be read: {damage}")
        found.unreadable.append(f"{directory}/{EPOCHS}")
        return None
    return epochs if epochs.entries else None


def _tell_flaws(found: Checked, file: str, examined: Examined, *, is_last: bool) -> None:
    for flaw in examined.flaws:
        if flaw.is_old:
            found.add(file, flaw.text, flaw.position, flaw.offset)
            found.old_format = found.old_format or file
            continue
        is_tail = flaw.is_tail and is_last
        text = f"{flaw.text}; no valid batch follows" if is_tail else flaw.text
        found.add(file, text, flaw.position, flaw.offset)
        found.has_hole |= not is_tail
    if any(not flaw.is_old for flaw in examined.flaws):
        found.damaged.append(file)


def _check_metadata_records(found: Checked, file: str, examined: Examined) -> None:
    for sound in examined.batches:
        try:
            for record in read_records(sound.batch):
                if not sound.batch.is_control:
                    unframe_record(record.value or b"")
        except (KafkaError, MalformedFrame, Damage) as error:
            found.add(file, f"a batch that cannot be read: {error}", sound.position, sound.batch.base_offset)
            found.has_hole = True


def _check_indexes(
    world: World, found: Checked, directory: str, base: int, examined: Examined, *, is_last: bool
) -> None:
    for suffix, check in ((INDEX, check_offsets), (TIME_INDEX, check_times)):
        file = f"{directory}/{file_name(base, suffix)}"
        if not world.disk.exists(file):
            found.add(file, "is missing")
            continue
        wrong = check(_whole(world, file), base, examined.batches, is_last)
        if wrong is not None:
            found.add(file, wrong[1], wrong[0])


def _check_aborted(
    world: World, found: Checked, directory: str, base: int, aborted: list[tuple[int, int, int]]
) -> None:
    from kpybroker.storage.files.txn_index import TxnIndex

    file = f"{directory}/{file_name(base, TXN_INDEX)}"
    try:
        said = [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in TxnIndex(world.disk, file)]
    except Damage as damage:
        found.add(file, str(damage))
        return
    markers = {(producer, last) for producer, _, last in aborted}
    lacking = [one for one in aborted if one[1] >= 0 and one not in said]
    strange = [one for one in said if (one[0], one[2]) not in markers]
    size = world.disk.path_size(file) if world.disk.exists(file) else 0
    if size % 34:
        found.add(file, f"{size % 34} bytes at the end are not an entry", size - size % 34)
    for producer, first, last in lacking[:1]:
        found.add(file, f"lacks the transaction of producer {producer} from {first}, aborted at {last}", offset=last)
    for producer, _, last in strange[:1]:
        text = f"has a transaction of producer {producer} that ends at {last}, but the log has no abort marker of this "
        found.add(file, f"{text}producer at that offset", offset=last)


def _check_epochs(found: Checked, directory: str, examined: Examined, epochs: LeaderEpochs) -> None:
    for sound in examined.batches:
        told, has = epochs.epoch_at(sound.batch.base_offset), sound.batch.leader_epoch
        is_deleted = sound.batch.base_offset < epochs.entries[0][1]  # below the log start offset
        if has >= 0 and told != has and not is_deleted:
            text = f"has leader epoch {told}, but the batch at offset {sound.batch.base_offset} has {has}"
            file = f"{directory}/{EPOCHS}"
            if file not in found.unreadable:
                found.add(file, text, offset=sound.batch.base_offset)
                found.unreadable.append(file)
            return


def _check_small_files(world: World, found: Checked, directory: str, names: list[str]) -> None:
    for name in names:
        file = f"{directory}/{name}"
        try:
            if name.endswith(SNAPSHOT):
                ProducerStates().load_snapshot(read_file(world.disk, file), 0, 0, ENDLESS)
            elif name.endswith(".checkpoint"):
                decode_snapshot(_whole(world, file), name)
            elif name == PARTITION_METADATA:
                read_topic_id(world.disk, directory)
            else:
                continue
        except Damage as damage:
            found.add(file, f"cannot be read: {damage}")
            found.unreadable.append(file)
