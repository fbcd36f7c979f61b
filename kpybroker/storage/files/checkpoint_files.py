"""Kafka's small text files: a version line, a line with the number of rows, and the rows.

`recovery-point-offset-checkpoint`, `replication-offset-checkpoint`, `log-start-offset-checkpoint` and
`cleaner-offset-checkpoint` have rows of topic, partition and offset; `leader-epoch-checkpoint` has rows of epoch and
offset. An empty file has no rows. Files are replaced atomically: a temporary file is written and renamed.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping, Sequence

from kpybroker.errors import Damage
from kpybroker.topics import TopicPartition
from kpybroker.world import Buffer, Disk

log = logging.getLogger(__name__)

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
_MAX_FILE_BYTES = 64 << 20
_TOPIC_ID_FILE_BYTES = 43


def read_file(disk: Disk, path: str) -> bytes:
    """The contents of a small file. May wait for the disk. Raises FileNotFoundError, and Damage above 64 MiB."""
    handle = disk.open(path)
    try:
        size = disk.size(handle)
        if size > _MAX_FILE_BYTES:
            raise Damage(f"{path}: {size} bytes are too many for such a file")
        return disk.pread(handle, size, 0)
    finally:
        disk.close(handle)


def replace_file(disk: Disk, path: str, content: Buffer, *, sync: bool = False) -> None:
    """Write a temporary file and rename it over the old one. `sync` waits for the disk, so it is only used at startup,
    at shutdown and on the disk's thread."""
    beside = path + ".tmp"
    handle = disk.open(beside, create=True)
    try:
        disk.truncate(handle, 0)
        disk.pwritev(handle, [content], 0)
        if sync:
            disk.sync_blocking(handle)
    finally:
        disk.close(handle)
    disk.rename(beside, path)


def sync_file(disk: Disk, path: str) -> None:
    """Sync a file, which waits for the disk. Raises OSError."""
    handle = disk.open(path)
    try:
        disk.sync_blocking(handle)
    finally:
        disk.close(handle)


def read_rows(disk: Disk, path: str, columns: int) -> list[list[str]]:
    """The rows of a file, split at spaces. An empty file has no rows. Raises FileNotFoundError, Damage."""
    content = read_file(disk, path)
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise Damage(f"{path}: not a checkpoint file: {error}") from error
    if lines == [""]:
        return []
    if len(lines) < 3 or lines[0] != "0" or not lines[1].isdecimal() or int(lines[1]) != len(lines) - 3 or lines[-1]:
        raise Damage(f"{path}: not a checkpoint file of version 0, or truncated")
    rows = [line.split() for line in lines[2:-1]]
    for row in rows:
        if len(row) != columns or not all(cell.removeprefix("-").isdecimal() for cell in row[-1:]):
            raise Damage(f"{path}: malformed row {' '.join(row)!r}")
    return rows


def write_rows(disk: Disk, path: str, rows: Sequence[str], *, sync: bool = False) -> None:
    replace_file(disk, path, "\n".join(["0", str(len(rows)), *rows, ""]).encode(), sync=sync)


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """The offsets by (topic, partition). The result is empty if the file does not exist. Raises Damage."""
    try:
        rows = read_rows(disk, path, 3)
    except FileNotFoundError:
        return {}
    try:
        return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    except ValueError as error:
        raise Damage(f"{path}: {error}") from error


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int], *, sync: bool) -> None:
    write_rows(disk, path, [f"{topic} {index} {offset}" for (topic, index), offset in offsets.items()], sync=sync)


def read_topic_id(disk: Disk, directory: str) -> bytes | None:
    """The 16-byte topic id in `partition.metadata`; None if the file does not exist or was truncated by a crash.
    Raises Damage."""
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        content = read_file(disk, path).rstrip(b"\0")  # zeros if only the length was on disk before a crash
    except FileNotFoundError:
        return None
    if len(content) < _TOPIC_ID_FILE_BYTES:
        return None
    try:
        fields = dict(line.split(": ", 1) for line in content.decode().splitlines())
        topic_id = base64.urlsafe_b64decode(fields["topic_id"] + "==")
    except (ValueError, KeyError, binascii.Error) as error:
        raise Damage(f"{path}: not a partition.metadata file: {error!r}") from error
    if fields.get("version") != "0" or len(topic_id) != 16:
        raise Damage(f"{path}: not a partition.metadata file of version 0")
    return topic_id


def write_topic_id(disk: Disk, directory: str, topic_id: bytes) -> None:
    """Write `partition.metadata`. No temporary file is needed, because the partition has no data yet."""
    text = base64.urlsafe_b64encode(topic_id).rstrip(b"=")
    handle = disk.open(f"{directory}/{PARTITION_METADATA}", create=True)
    try:
        disk.pwritev(handle, [b"version: 0\ntopic_id: " + text], 0)
    finally:
        disk.close(handle)


def take_clean_mark(disk: Disk, path: str) -> int | None:
    """Remove the marker of a clean shutdown. Return its broker epoch, -1 if it has none, or None if there is no marker.

    The removal is synced: if a power failure restored the marker, data written after this would be trusted without a
    check. Raises OSError.
    """
    try:
        content = read_file(disk, path)
    except FileNotFoundError:
        return None
    import json  # needed only once, at startup

    epoch = -1
    try:
        epoch = int(json.loads(content).get("brokerEpoch", -1))
    except (ValueError, AttributeError, TypeError):
        log.warning("%s is not readable; the stop counts as clean, its broker epoch as unknown", path)
    disk.unlink(path)
    disk.sync_directory_blocking(path.rpartition("/")[0])
    return epoch
