"""Records the metadata hashes that Apache Kafka stores for consumer, share and streams groups, and the topics and racks
of which they are computed.

    python -m oracle.metadata_hashes

writes tests/groups/metadata_hashes.json. tests/groups/test_subscriptions.py computes the same hashes.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from kpybroker.controller.features import SUPPORTED_FEATURES
from kpybroker.groups.ground.record_keys import kind_of
from kpybroker.wire.api import by_name
from kpybroker.wire.records.batch import read_records, whole_batches
from kpybroker.wire.rpc import (
    broker_registration,
    consumer_group_heartbeat,
    create_topics,
    find_coordinator,
    share_group_heartbeat,
    streams_group_heartbeat,
)
from kpybroker.wire.stored import consumer_group, share_group, streams_group
from kpybroker.wire.stored.prefixed import parse_stored
from oracle.asking import ask
from oracle.kafka import CLUSTER_ID, QUICK_JVM, Kafka
from oracle.streams_scenes import passing

VECTORS = Path(__file__).parent.parent / "tests" / "groups" / "metadata_hashes.json"
PATIENCE_S = 60.0
RACKS = {1: None, 2: "\uff5e", 3: "\U0001f600", 4: "a"}
"""Only the first broker is a process. The others register, and stay fenced. Java's order of these racks is not that of
their code points."""
TOPICS = {
    "one": [[1]],
    "wide": [[3, 2, 4, 1], [1, 2, 3, 4], [4, 1, 3, 2]],
    "Wide": [[1], [1]],
    "a.very-long_name" + 12 * "0123456789": [[2, 1]],
}
"""Topic -> the replicas of each partition."""
MISSING = "missing"
GROUPS: dict[str, tuple[str, ...]] = {
    "first": ("one",),
    "second": ("wide",),
    "third": ("Wide", "one"),
    "every": tuple(TOPICS),
    "partly": ("wide", MISSING),
    "none": (MISSING,),
}
"""Group -> the topics that it reads. There is one group of each kind, with the kind in front of its name."""
KINDS: dict[int, tuple[str, Any, Any]] = {
    3: ("consumer", consumer_group.ConsumerGroupMetadataKey, consumer_group.ConsumerGroupMetadataValue),
    11: ("share", share_group.ShareGroupMetadataKey, share_group.ShareGroupMetadataValue),
    17: ("streams", streams_group.StreamsGroupMetadataKey, streams_group.StreamsGroupMetadataValue),
}
"""The type of the record of a group's epoch -> kind of group, key and value."""
MEMBER_ID = "kpFFS1QrTQ2Kv3sZrBT4tA"


def beat(kind: str, group: str, topics: tuple[str, ...]) -> tuple[str, int, Any, Any]:
    """The first heartbeat of a member: the API, its version, the request and the class of the response."""
    if kind == "consumer":
        module: Any = consumer_group_heartbeat
        request = module.Request(subscribed_topic_names=list(topics), rebalance_timeout_ms=60_000, topic_partitions=[])
    elif kind == "share":
        module, request = share_group_heartbeat, share_group_heartbeat.Request(subscribed_topic_names=list(topics))
    else:
        module = streams_group_heartbeat
        request = module.Request(rebalance_timeout_ms=60_000, process_id="p", topology=passing(*topics))
        request.active_tasks, request.standby_tasks, request.warmup_tasks = [], [], []
    request.group_id, request.member_id, request.member_epoch = group, MEMBER_ID, 0
    return f"{kind.capitalize()}GroupHeartbeat", 0 if kind == "streams" else 1, request, module.Response


def join(kafka: Kafka, kind: str, group: str, topics: tuple[str, ...]) -> None:
    """Make a group with a member."""
    name, version, request, response = beat(kind, group, topics)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        wanted = find_coordinator.Request(coordinator_keys=[group])
        answer = ask(
            ("127.0.0.1", kafka.port), "FindCoordinator", 6, wanted, find_coordinator.Response, PATIENCE_S
        ).coordinators[0]
        if answer.error_code == 0:
            answer = ask(("127.0.0.1", kafka.port), name, version, request, response, PATIENCE_S)
            if answer.error_code == 0:
                return
        assert time.monotonic() < deadline, f"{name} of {group}: {answer.error_code} {answer.error_message}"
        time.sleep(0.1)


def register(kafka: Kafka, node_id: int, rack: str) -> None:
    """Register a broker that is not there."""
    rpc = broker_registration
    features = [
        rpc.Feature(name=name, min_supported_version=low, max_supported_version=high)
        for name, (low, high) in SUPPORTED_FEATURES.items()
    ]
    request = rpc.Request(
        broker_id=node_id,
        cluster_id=CLUSTER_ID,
        incarnation_id=bytes([node_id]) * 16,
        listeners=[rpc.Listener(name="PLAINTEXT", host="127.0.0.1", port=1)],
        features=features,
        rack=rack,
        log_dirs=[bytes([node_id]) * 16],
    )
    place = "127.0.0.1", kafka.controller_port
    told = ask(place, "BrokerRegistration", by_name["BrokerRegistration"].max, request, rpc.Response, PATIENCE_S)
    assert told.error_code == 0, told


def create(kafka: Kafka) -> dict[str, str]:
    """Create the topics. Returns their ids in hexadecimal."""
    wanted = [
        create_topics.CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                create_topics.CreatableReplicaAssignment(partition_index=index, broker_ids=replicas)
                for index, replicas in enumerate(partitions)
            ],
        )
        for name, partitions in TOPICS.items()
    ]
    request = create_topics.Request(topics=wanted, timeout_ms=30_000)
    answer = ask(("127.0.0.1", kafka.port), "CreateTopics", 7, request, create_topics.Response, PATIENCE_S)
    assert not any(each.error_code for each in answer.topics), [each.error_message for each in answer.topics]
    return {each.name: bytes(each.topic_id).hex() for each in answer.topics}


def stored_hashes(data: Path) -> dict[str, int]:
    """Group -> the hash in the last record of its epoch, from the files of a stopped node."""
    found: dict[str, int] = {}
    for log in sorted(data.glob("__consumer_offsets-*/*.log")):
        for batch in whole_batches(log.read_bytes()):
            for record in () if batch.is_control else read_records(batch):
                known = KINDS.get(kind_of(record.key or b""))
                if known is not None and record.value is not None:
                    group = parse_stored(known[1], record.key or b"").group_id
                    found[group] = parse_stored(known[2], record.value).metadata_hash
    return found


def record() -> dict[str, Any]:
    """Run a broker with groups of each kind."""
    names = {f"{kind} {group}": topics for kind, _, _ in KINDS.values() for group, topics in GROUPS.items()}
    with Kafka(properties={"offsets.topic.num.partitions": "2"}, jvm=QUICK_JVM) as kafka:
        for node_id, rack in RACKS.items():
            if rack is not None:
                register(kafka, node_id, rack)
        ids = create(kafka)
        for group, topics in names.items():
            join(kafka, group.partition(" ")[0], group, topics)
        kafka.stop()
        hashes = stored_hashes(kafka.data)
    assert set(hashes) == set(names), sorted(hashes)
    return {
        "racks": {str(node_id): rack for node_id, rack in RACKS.items()},
        "topics": {name: {"id": ids[name], "replicas": replicas} for name, replicas in TOPICS.items()},
        "groups": {group: {"reads": list(topics), "hash": hashes[group]} for group, topics in names.items()},
    }


def main() -> None:
    VECTORS.write_text(json.dumps(record(), indent=1) + "\n")


if __name__ == "__main__":
    main()
