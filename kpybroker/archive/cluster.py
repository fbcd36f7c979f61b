"""Queries the cluster for an archive run: its id, the topics' ids, the readable offsets, and the user's rights."""

from __future__ import annotations

from kpybroker.archive.planning import Topic
from kpybroker.client import session
from kpybroker.client.client import EARLIEST, LATEST, Client, CommandFailed
from kpybroker.client.coordinators import OF_GROUPS, OF_TRANSACTIONS, coordinator
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.spark.cluster import Cluster
from kpybroker.storage.dirs.formatting import encode_id

ISOLATIONS = ("read_committed", "read_uncommitted")


def describe(cluster: Cluster, names: list[str], isolation: str, timeout_ms: int) -> tuple[str, list[Topic]]:
    """Return the cluster's id and the named topics, which must exist and have leaders. Raises CommandFailed,
    ConfigError."""
    found: list[tuple[str, list[Topic]]] = []

    async def ask(client: Client) -> None:
        found.append(await _describe(client, names, isolation))

    session.run(ask, cluster.bootstrap, timeout_ms, properties=cluster.properties())
    return found[0]


def require_rights(cluster: Cluster, replay: str, timeout_ms: int) -> None:
    """Raises CommandFailed if the user may not use the group or the transactional ids of a replay.

    If the right on the group is missing, confluent-kafka waits for a minute, and its error does not mention the right.
    """

    async def ask(client: Client) -> None:
        for kind, what, right in (OF_GROUPS, "group", "READ"), (OF_TRANSACTIONS, "transactional id", "WRITE"):
            try:
                await coordinator(client, replay, kind)
            except KafkaError as refusal:
                if refusal.code not in (
                    ErrorCode.GROUP_AUTHORIZATION_FAILED,
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                ):
                    raise
                raise CommandFailed(
                    f"the user may not use the {what} {replay}: it needs the ACL {right} on it, or on its prefix "
                    f"({refusal.code.name})"
                ) from refusal

    session.run(ask, cluster.bootstrap, timeout_ms, properties=cluster.properties())


async def _describe(client: Client, names: list[str], isolation: str) -> tuple[str, list[Topic]]:
    found = await client.topics(names)
    places = [(name, row.partition_index) for name in names for row in found[name].partitions]
    starts = await client.list_offsets(dict.fromkeys(places, EARLIEST))
    ends = await client.list_offsets(dict.fromkeys(places, LATEST), committed=isolation == "read_committed")
    topics = [
        Topic(
            name,
            encode_id(found[name].topic_id),
            {
                partition: (starts[name, partition], ends[name, partition])
                for topic, partition in places
                if topic == name
            },
        )
        for name in names
    ]
    return client.cluster_id or "", topics
