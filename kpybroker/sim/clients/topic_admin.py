"""A client that creates and deletes topics. The changes that brokers confirm must persist."""

from __future__ import annotations

from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.cluster.setup import TopicSetup
from kpybroker.sim.world.history import TopicFate
from kpybroker.wire.rpc import create_topics, delete_topics, incremental_alter_configs

EXISTS = int(ErrorCode.TOPIC_ALREADY_EXISTS)
ADMIN_LIMIT_S = 10.0
INTERNAL_SEGMENT_BYTES = "3000"


async def create_topic(client: SimClient, topic: TopicSetup) -> None:
    """Create a topic, unless it exists. Raises Unanswered, Refused."""
    configs = [create_topics.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()]
    row = create_topics.CreatableTopic(
        name=topic.name, num_partitions=topic.partitions, replication_factor=topic.replicas, configs=configs
    )
    node_id = client.any_broker()
    response = await client.ask(node_id, "CreateTopics", create_topics.Request(topics=[row]), limit_s=ADMIN_LIMIT_S)
    code = response.topics[0].error_code
    if code not in (0, EXISTS):
        raise Refused(code)


async def delete_topic(client: SimClient, name: str) -> None:
    """Delete a topic. Raises Unanswered, Refused. The error may come from a former controller that does not have the
    topic and has not noticed that it was replaced."""
    request = delete_topics.Request(topics=[delete_topics.DeleteTopicState(name=name)], timeout_ms=5000)
    response = await client.ask(client.any_broker(), "DeleteTopics", request, limit_s=ADMIN_LIMIT_S)
    code = response.responses[0].error_code
    if code:
        raise Refused(code)


async def use_small_segments(client: SimClient, name: str, kind: int) -> None:
    """Have a broker create the internal topic of a coordinator type, and set small segments for it. Raises Unanswered,
    Refused."""
    await client.coordinator("anybody", kind)
    await alter_config(client, ResourceType.TOPIC, name, "internal.segment.bytes", INTERNAL_SEGMENT_BYTES)


async def alter_config(client: SimClient, kind: int, resource: str, name: str, value: str) -> None:
    """Set a config of a resource. Raises Unanswered, Refused."""
    wanted = incremental_alter_configs.AlterableConfig(name=name, value=value)
    row = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=resource, configs=[wanted])
    request = incremental_alter_configs.Request(resources=[row])
    response = await client.ask(client.any_broker(), "IncrementalAlterConfigs", request, limit_s=ADMIN_LIMIT_S)
    code = response.responses[0].error_code
    if code:
        raise Refused(code)


class TopicAdmin:
    """Creates topics and deletes some of them."""

    def __init__(self, client: SimClient, replicas: int, *, pace_s: float) -> None:
        self._client = client
        self._replicas = replicas
        self._pace_s = pace_s
        self._number = 0

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            name = f"made{self._number}"
            fate = client.history.topics[name] = TopicFate()
            try:
                await create_topic(client, TopicSetup(name, client.random.randint(1, 4), self._replicas, {}))
                fate.becomes(True)
                client.note(f"created {name}")
                client.succeeded()
                if client.random.random() < 0.4:
                    fate.becomes(None)
                    await delete_topic(client, name)
                    fate.becomes(False)
                    client.note(f"deleted {name}")
                    client.succeeded()
                await client.nap(self._pace_s)
            except (Unanswered, Refused) as failed:
                fate.becomes(None)  # for good: a request without a response may take effect later
                client.note(f"does not know the fate of {name}: {failed}")
                await client.nap(1.0)
            self._number += 1
