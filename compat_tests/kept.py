"""State of a broker in the responses to clients: quotas, and the log directories of replicas (`visible.py` has topics,
groups and settings).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from compat_tests.changing import until
from compat_tests.visible import Eyes, Facts, Place
from kpybroker.wire.rpc import alter_client_quotas, alter_replica_log_dirs, describe_client_quotas, describe_log_dirs

CLIENT_ID = "client-id"


def quotas(eyes: Eyes) -> Facts:
    """All quotas."""
    told = eyes.ask("DescribeClientQuotas", describe_client_quotas.Request(), describe_client_quotas.Response)
    assert told.error_code == 0, told.error_message
    return {
        f"quotas of {sorted((part.entity_type, part.entity_name) for part in entry.entity)}": sorted(
            (value.key, value.value) for value in entry.values
        )
        for entry in told.entries
    }


def set_quota(eyes: Eyes, client_id: str | None, **values: float) -> None:
    """Set the quota of a client id; None is the default for client ids without a quota of their own."""
    entity = [alter_client_quotas.EntityData(entity_type=CLIENT_ID, entity_name=client_id)]
    operations = [alter_client_quotas.OpData(key=key, value=value) for key, value in values.items()]
    request = alter_client_quotas.Request(entries=[alter_client_quotas.EntryData(entity=entity, ops=operations)])
    told = eyes.ask("AlterClientQuotas", request, alter_client_quotas.Response)
    assert told.entries[0].error_code == 0, told.entries[0].error_message


class Replica(NamedTuple):
    """The directory of a replica on its node, and whether it is a future replica."""

    path: str
    is_future: bool


def directories(eyes: Eyes, node: int) -> dict[str, dict[Place, bool]]:
    """The replicas in each directory of a node, by path, with the information which of them are future replicas."""
    request = describe_log_dirs.Request(topics=None)
    told = eyes.ask("DescribeLogDirs", request, describe_log_dirs.Response, node)
    assert told.error_code == 0, told.error_code
    assert not any(each.error_code for each in told.results), told.results
    return {
        each.log_dir: {
            (topic.name, row.partition_index): row.is_future_key for topic in each.topics for row in topic.partitions
        }
        for each in told.results
    }


def replicas_of(eyes: Eyes, place: Place, node: int) -> set[Replica]:
    """The replicas of one partition on a node: one, or two while it moves."""
    found = directories(eyes, node)
    return {Replica(path, rows[place]) for path, rows in found.items() if place in rows}


def places(eyes: Eyes, without: tuple[str, ...] = ()) -> Facts:
    """The directory of every replica of every partition with records of clients."""
    facts: Facts = {}
    for node in eyes.nodes:
        for path, rows in directories(eyes, node).items():
            for place, is_future in rows.items():
                if not place[0].startswith("__") and place[0] not in without:
                    facts.setdefault(f"{place} on {node}", set()).add((Path(path).name, is_future))
    return facts


def move(eyes: Eyes, place: Place, node: int) -> str:
    """Move a replica to another directory of its node. Returns the path of the directory."""
    [here] = replicas_of(eyes, place, node)
    goal = next(path for path in sorted(directories(eyes, node)) if path != here.path)
    topic = alter_replica_log_dirs.AlterReplicaLogDirTopic(name=place[0], partitions=[place[1]])
    request = alter_replica_log_dirs.Request(
        dirs=[alter_replica_log_dirs.AlterReplicaLogDir(path=goal, topics=[topic])]
    )
    told = eyes.ask("AlterReplicaLogDirs", request, alter_replica_log_dirs.Response, node)
    assert told.results[0].partitions[0].error_code == 0, told.results[0].partitions[0].error_code
    return goal


def await_move(eyes: Eyes, place: Place, node: int, goal: str) -> None:
    """Return when the replica is only in its new directory."""
    until(lambda: replicas_of(eyes, place, node) == {Replica(goal, is_future=False)}, f"{place} is in {goal}")
