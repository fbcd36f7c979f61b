"""A leader that is newer than this node sends it records that it does not know: it names them, writes none of them, and
ends, and the cluster serves on."""

from __future__ import annotations

import pytest

from kpybroker.errors import Damage
from kpybroker.wire.records.batch import encode_batch, read_records, split
from kpybroker.wire.records.snapshot import decode_snapshot, encode_snapshot
from kpybroker.wire.stored import metadata as stored
from tests.replication.virtual import VirtualCluster, play

TYPE = 250
NEW_TYPE = b"\x01\xfa\x01\x00\x00"
"""A record of TYPE, version 0."""
NEW_VERSION = b"\x01\x14\x63\x00"
"""A NoOpRecord of version 99."""
KNOWN = stored.frame_record(stored.NoOpRecord())
REMEDY = "a newer Apache Kafka or kpybroker wrote it; use a newer kpybroker"


def leader_of(cluster: VirtualCluster) -> int:
    return next(node_id for node_id, broker in cluster.brokers.items() if broker.quorum.is_leader)


def append(cluster: VirtualCluster, *values: bytes) -> int:
    """The leader appends these records, which it knows, in one batch. Returns the offset of the first."""
    driver = cluster.broker(leader_of(cluster)).quorum.driver
    first = driver.log.end
    driver.append([(None, value) for value in values], [])
    return first


def said(cluster: VirtualCluster, node_id: int) -> str:
    """The reason for which the node ended by itself; empty if it did not."""
    lines = [line for line in cluster.history.trace if f"node {node_id} gave up: " in line or "does not start" in line]
    return lines[-1] if lines else ""


def values_of(cluster: VirtualCluster, node_id: int) -> list[bytes]:
    """The metadata records on the node's disk."""
    storage, path = cluster.machines[node_id].storage, "/data/__cluster_metadata-0"
    names = sorted(name for name in storage.folder(path).names if name.endswith(".log"))
    return [
        bytes(record.value or b"")
        for name in names
        for batch in split(memoryview(bytes(storage.file(f"{path}/{name}").content)))
        if not batch.is_control
        for record in read_records(batch)
    ]


@pytest.mark.parametrize(
    ("value", "named"),
    [(NEW_TYPE, f"type {TYPE}, version 0"), (NEW_VERSION, "type 20, version 99")],
    ids=["a type", "a version"],
)
def test_an_observer_refuses_what_it_does_not_know(value: bytes, named: str) -> None:
    """Also if the record is not the first of its batch."""

    async def scene(cluster: VirtualCluster) -> None:
        cluster.machines[2].stay_down()
        offset = append(cluster, KNOWN, value) + 1
        await cluster.until(lambda: cluster.machines[2].process is None, "the observer has ended")
        assert f"offset {offset} of the metadata log has a metadata record of {named}, " in said(cluster, 2)
        assert f"{REMEDY}. The leader sent it, and this node has not written it" in said(cluster, 2)
        assert value not in values_of(cluster, 2)
        await cluster.create((1,), topic="after")
        await cluster.put(b"served", topic="after")

    play(scene, count=2, voters=(1,))


def test_a_voter_refuses_it_at_its_start_and_the_others_serve_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two others know the type. As long as this voter is not upgraded, it ends again at each start."""

    async def scene(cluster: VirtualCluster) -> None:
        leader = leader_of(cluster)
        late = next(node_id for node_id in cluster.machines if node_id != leader)
        cluster.machines[late].stay_down()
        cluster.machines[late].kill()
        with monkeypatch.context() as newer:
            newer.setitem(stored.by_key, TYPE, stored.NoOpRecord)
            offset = append(cluster, NEW_TYPE)
            others = [broker.quorum for broker in cluster.brokers.values()]
            await cluster.until(lambda: all(each.committed > offset for each in others), "two voters have it")
        before = values_of(cluster, late)
        for _ in range(2):
            cluster.machines[late].start()
            cluster.machines[late].stay_down()
            await cluster.until(lambda: cluster.machines[late].process is None, "the voter has ended")
            assert f"offset {offset} of the metadata log has a metadata record of type {TYPE}" in said(cluster, late)
            assert NEW_TYPE not in values_of(cluster, late)
        assert values_of(cluster, late)[: len(before)] == before
        await cluster.create((leader,), topic="after")
        await cluster.put(b"served", topic="after")

    play(scene)


def test_a_snapshot_with_it_is_named() -> None:
    first, last = encode_snapshot([], epoch=1, now_ms=1, last_timestamp_ms=1)
    unknown = encode_batch([(None, KNOWN), (None, NEW_TYPE)], base_offset=1, timestamp_ms=1, leader_epoch=1)
    with pytest.raises(Damage, match=f"s.checkpoint has a metadata record of type {TYPE}, version 0, which .*{REMEDY}"):
        decode_snapshot(first + bytes(unknown) + last, "s.checkpoint")
