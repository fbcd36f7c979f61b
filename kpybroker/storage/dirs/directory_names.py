"""The names of partition directories in a log directory: `<topic>-<partition>`, and three special forms.

A future replica (KIP-113) is in `<topic>-<partition>.<hex>-future`. The name of a deleted partition ends in `-delete`.
The name ends in `-stray` if the partition has no replica on this broker according to the metadata.
"""

from __future__ import annotations

import logging
import re

from kpybroker.storage.dirs.formatting import METADATA_DIRECTORY
from kpybroker.topics import TopicPartition
from kpybroker.world import Disk

log = logging.getLogger(__name__)

DELETED, FUTURE, STRAY = "-delete", "-future", "-stray"
NAME_LIMIT = 255
_PARTITION = re.compile(r"(.+)-(\d{1,10})")
_DELETED, _FUTURE = (re.compile(rf"(.+)-(\d{{1,10}})\.([0-9a-f]{{32}}){ending}") for ending in (DELETED, FUTURE))


def _key(match: re.Match[str] | None) -> TopicPartition | None:
    return None if match is None else (match[1], int(match[2]))


def key_of(name: str) -> TopicPartition | None:
    """The partition to which a directory name belongs; None for any other name."""
    return _key(_PARTITION.fullmatch(name))


def key_of_deleted(name: str) -> TopicPartition | None:
    """The partition of a `-delete` directory; None for any other name, and if the topic name was truncated. Names of
    moved replicas are not truncated."""
    return _key(_DELETED.fullmatch(name))


def key_of_future(name: str) -> TopicPartition | None:
    """The partition of a `-future` directory; None for any other name."""
    return _key(_FUTURE.fullmatch(name))


def unique_name(topic: str, partition: int, number: int, ending: str) -> str:
    """A directory name that contains a random number of 128 bits. A long topic name is truncated."""
    rest = f"-{partition}.{number:032x}{ending}"
    return f"{topic[: NAME_LIMIT - len(rest)]}{rest}"


def is_too_long(topic: str, partition: int) -> bool:
    """Whether the name of a future replica's directory would be too long."""
    return len(f"{topic}-{partition}.{0:032x}{FUTURE}") > NAME_LIMIT


def partitions_in(disk: Disk, path: str) -> list[TopicPartition]:
    """The partitions that have a directory in a log directory, except the metadata log. Raises OSError."""
    found = (key_of(name) for name in disk.list(path) if name != METADATA_DIRECTORY)
    return [key for key in found if key is not None]


def futures_in(disk: Disk, path: str) -> dict[TopicPartition, str]:
    """The future replicas in a log directory, and the names of their directories. Raises OSError.

    A future replica in the same log directory as the current one is left over from a cancelled move and is ignored.
    """
    names = disk.list(path)
    found = ((key_of_future(name), name) for name in names if name.endswith(FUTURE))
    futures = {key: name for key, name in found if key is not None}
    for topic, index in [key for key in futures if f"{key[0]}-{key[1]}" in names]:
        log.warning("%s/%s is not needed and can be deleted", path, futures.pop((topic, index)))
    return futures
