"""Small requests and parts of requests for the scenes of the golden vectors."""

from collections.abc import Iterator
from typing import Any

from kpybroker.wire.api import Api, by_name
from kpybroker.wire.records.batch import Record, encode_batch
from kpybroker.wire.rpc import delete_records, describe_configs, offset_commit

FIRST_MS = 1_700_000_000_000


def versions(name: str) -> Iterator[int]:
    """The first, the first flexible and the last version, each once."""
    api: Api = by_name[name]
    yield from sorted({version for version in (api.min, api.flexible, api.max) if api.min <= version <= api.max})


def batch(first: int, count: int, **options: Any) -> bytes:
    return bytes(
        encode_batch(
            [
                Record(
                    0, FIRST_MS + n, None if n % 3 == 2 else f"key {n}".encode(), f"value {n}".encode(), (("h", b"1"),)
                )
                for n in range(first, first + count)
            ],
            **options,
        )
    )


def config_of(resource_type: int, name: str, keys: list[str] | None) -> Any:
    return describe_configs.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=keys
    )


def committed_partition(index: int, offset: int, epoch: int, note: str | None) -> Any:
    return offset_commit.OffsetCommitRequestPartition(
        partition_index=index, committed_offset=offset, committed_leader_epoch=epoch, committed_metadata=note
    )


def deletion(offsets: dict[int, int]) -> Any:
    cut = [delete_records.DeleteRecordsPartition(partition_index=at, offset=to) for at, to in offsets.items()]
    topic = delete_records.DeleteRecordsTopic(name="golden", partitions=cut)
    return delete_records.Request(topics=[topic], timeout_ms=9000)
