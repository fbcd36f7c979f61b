"""Any broker accepts any admin request and forwards it to the active controller, even if that changes meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kpybroker.call import Call
from kpybroker.client.peer import Peer
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode
from kpybroker.handlers import alter_configs as replacing
from kpybroker.handlers import handler_of
from kpybroker.handlers import incremental_alter_configs as changing
from kpybroker.long_work import REQUESTS_MAX
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.security.principal import ANONYMOUS
from kpybroker.server.node import Node
from kpybroker.server.requests.forwarding import forwarding
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.api import API, by_name
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.codec.parsing import ELEMENTS_AT_ONCE
from kpybroker.wire.frame import encode_request, parse_response_header
from kpybroker.wire.rpc import (
    add_raft_voter,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_topics,
    describe_quorum,
    elect_leaders,
    envelope,
    expire_delegation_token,
    incremental_alter_configs,
    list_partition_reassignments,
    metadata,
    remove_raft_voter,
    renew_delegation_token,
    unregister_broker,
    update_features,
)
from tests.handlers.acl_setting import BOB, READ, SETTINGS, creation, selection
from tests.server.clustering import Cluster, dialled, run_cluster
from tests.server.raw import raw
from tests.serving import serving

pytestmark = pytest.mark.slow

TOPIC, BROKER, BROKER_LOGGER = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.BROKER_LOGGER


def wanted(name: str) -> create_topics.Request:
    topic = create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return create_topics.Request(topics=[topic], timeout_ms=10_000)


def requests(name: str) -> list[tuple[str, Any, str]]:
    """One request of each kind about a topic: the API, the request, and the name of the list of results."""
    change = incremental_alter_configs.AlterableConfig(name="retention.ms", config_operation=0, value="60000")
    about = incremental_alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[change])
    grown = create_partitions.CreatePartitionsTopic(name=name, count=2, assignments=None)
    ours = elect_leaders.TopicPartitions(topic=name, partitions=[0])
    stay = alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=None)
    moved = alter_partition_reassignments.ReassignableTopic(name=name, partitions=[stay])
    rate = alter_client_quotas.OpData(key="producer_byte_rate", value=1e9)
    user = alter_client_quotas.EntityData(entity_type="user", entity_name=name)
    quota = alter_client_quotas.EntryData(entity=[user], ops=[rate])
    credential = alter_user_scram_credentials.ScramCredentialUpsertion(
        name=name, mechanism=1, iterations=4096, salt=b"s", salted_password=b"p"
    )
    kept = alter_configs.AlterableConfig(name="retention.ms", value="60000")
    old = alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[kept])
    log = describe_quorum.TopicData(topic_name=METADATA_TOPIC, partitions=[describe_quorum.PartitionData()])
    level = update_features.FeatureUpdateKey(feature="metadata.version", max_version_level=30)
    return [
        ("CreateTopics", wanted(name), "topics"),
        ("AlterConfigs", alter_configs.Request(resources=[old]), "responses"),
        ("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[about]), "responses"),
        ("CreatePartitions", create_partitions.Request(topics=[grown], timeout_ms=10_000), "results"),
        ("ElectLeaders", elect_leaders.Request(topic_partitions=[ours]), ""),
        ("AlterPartitionReassignments", alter_partition_reassignments.Request(topics=[moved]), ""),
        ("ListPartitionReassignments", list_partition_reassignments.Request(topics=None), ""),
        ("AlterClientQuotas", alter_client_quotas.Request(entries=[quota]), "entries"),
        ("AlterUserScramCredentials", alter_user_scram_credentials.Request(upsertions=[credential]), "results"),
        ("UpdateFeatures", update_features.Request(feature_updates=[level]), ""),
        ("DescribeQuorum", describe_quorum.Request(topics=[log]), ""),
        ("DeleteTopics", delete_topics.Request(topics=[delete_topics.DeleteTopicState(name=name)]), "responses"),
    ]


REFUSED = {
    "UnregisterBroker": (unregister_broker.Request(broker_id=99), ErrorCode.BROKER_ID_NOT_REGISTERED),
    "AddRaftVoter": (add_raft_voter.Request(cluster_id=None, voter_id=9), ErrorCode.INVALID_REQUEST),
    "CreateAcls": (create_acls.Request(creations=[creation("t")]), ErrorCode.SECURITY_DISABLED),
    "DeleteAcls": (delete_acls.Request(filters=[selection(operation=READ)]), ErrorCode.SECURITY_DISABLED),
    "CreateDelegationToken": (create_delegation_token.Request(), ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
    "RenewDelegationToken": (renew_delegation_token.Request(), ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
    "ExpireDelegationToken": (expire_delegation_token.Request(), ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
    "RemoveRaftVoter": (remove_raft_voter.Request(cluster_id=None, voter_id=9), ErrorCode.INVALID_REQUEST),
}
"""Requests that are refused because of an unknown node, no authorizer or no login."""


def test_there_is_a_request_for_every_forwarded_api() -> None:
    forwarded = {api.name for api in API if api.is_forwarded}
    assert {*(name for name, _, _ in requests("t")), *REFUSED} == forwarded


def test_a_broker_handles_its_own_rows_before_it_forwards(tmp_path: Path) -> None:
    """The settings and log levels of a broker are handled by the broker itself, whichever node is the controller."""

    def setting(kind: int, name: str, key: str, value: str) -> Any:
        change = incremental_alter_configs.AlterableConfig(name=key, config_operation=0, value=value)
        return incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])

    async def scene(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        rate = "leader.replication.throttled.rate"
        for node_id, node in cluster.nodes.items():
            peer, own, other = await dialled(node), str(node_id), str(node_id % 3 + 1)
            asked = [
                setting(BROKER, own, rate, "1000"),
                setting(BROKER, other, rate, "1000"),
                setting(BROKER_LOGGER, own, "kpybroker.broker", "INFO"),
                setting(BROKER, "", "follower.replication.throttled.rate", "5"),
            ]
            told = await peer.ask("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=asked))
            assert [row.error_code for row in told.responses] == [0, ErrorCode.INVALID_REQUEST, 0, 0]
            only = await peer.ask("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=asked[2:3]))
            assert [row.error_code for row in only.responses] == [0]
            old = alter_configs.AlterConfigsResource(
                resource_type=BROKER, resource_name=own, configs=[alter_configs.AlterableConfig(name=rate, value="7")]
            )
            whole = await peer.ask("AlterConfigs", alter_configs.Request(resources=[old]))
            assert [row.error_code for row in whole.responses] == [0]
            await cluster.until(lambda: node.broker.replication.hosting.leading_throttle.rate == 7, "it applies")  # noqa: B023
            peer.close()

    run_cluster(tmp_path, scene)


@pytest.mark.parametrize(
    ("broker", "setting", "value"),
    [
        ("1", "log.cleaner.threads", "abc"),
        ("1", "node.id", "7"),
        ("1", "cordoned.log.dirs", "/nowhere"),
        ("1", "background.threads", "1000"),
        ("", "background.threads", "0"),
        ("", "cordoned.log.dirs", "*"),
    ],
)
def test_a_broker_checks_its_settings_before_forwarding(tmp_path: Path, broker: str, setting: str, value: str) -> None:
    """A controller of Apache Kafka would accept them."""

    def settled(node: Node, name: str, text: str) -> list[int]:
        """The error codes of the rows that the broker creates itself, for both APIs."""
        one = incremental_alter_configs.AlterableConfig(name=name, config_operation=0, value=text)
        change = incremental_alter_configs.AlterConfigsResource(
            resource_type=BROKER, resource_name=broker, configs=[one]
        )
        all_ = alter_configs.AlterConfigsResource(
            resource_type=BROKER, resource_name=broker, configs=[alter_configs.AlterableConfig(name=name, value=text)]
        )
        rows = (
            *changing.here(node.broker, incremental_alter_configs.Request(resources=[change])).values(),
            *replacing.here(node.broker, alter_configs.Request(resources=[all_])).values(),
        )
        return [row.error_code for row in rows]

    async def scene() -> None:
        async with serving(tmp_path) as node:
            assert settled(node, setting, value) == [ErrorCode.INVALID_REQUEST] * 2
            assert settled(node, "log.retention.ms", "1000") == []

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_every_node_answers_every_admin_request(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3, 7)
        active = await cluster.leader()
        for node_id, node in cluster.nodes.items():
            peer = await dialled(node)
            for api, request, results in requests(f"t{node_id}"):
                told = await peer.ask(api, request)
                assert getattr(told, "error_code", 0) == 0, (node_id, api)
                for result in getattr(told, results) if results else ():
                    assert result.error_code == 0, (node_id, api, result)
            for api, (request, code) in REFUSED.items():
                assert codes_in(await peer.ask(api, request)) - {0} == {code}, (node_id, api)
            peer.close()
        assert await cluster.leader() == active

    run_cluster(tmp_path, play)


def test_acls_are_changed_through_every_node_and_apply_on_every_node(tmp_path: Path) -> None:
    """An ACL with an unknown element closes the client's connection if this node is the controller. Other nodes return
    an error."""

    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3, 7)
        active = await cluster.leader()
        for node_id, node in cluster.nodes.items():
            peer = await dialled(node)
            name = f"t{node_id}"
            made = await peer.ask("CreateAcls", create_acls.Request(creations=[creation(name), creation("")]))
            assert [row.error_code for row in made.results] == [0, ErrorCode.INVALID_REQUEST]
            metadata_of = node.broker.metadata

            def held(name: str = name, of: Any = metadata_of) -> bool:
                return [acl.resource_name for acl in of.image.acls.values()] == [name]

            await cluster.until(held, "the node knows it")
            for other in cluster.nodes.values():
                authorizer = other.broker.metadata.standard_authorizer
                assert authorizer is not None
                assert authorizer.is_loaded, "nodes serve clients when they know the ACLs"
                allowed = partial(authorizer.operations, BOB, "::1", [Operation.READ], AclResource.TOPIC, name)
                await cluster.until(lambda allowed=allowed: bool(allowed()), "it holds")  # type: ignore[misc]
            gone = await peer.ask("DeleteAcls", delete_acls.Request(filters=[selection(operation=READ)]))
            assert [len(row.matching_acls) for row in gone.filter_results] == [1]
            if node_id != active:
                wrong = creation(operation=0)
                told = await peer.ask("CreateAcls", create_acls.Request(creations=[wrong]))
                assert [row.error_code for row in told.results] == [ErrorCode.INVALID_REQUEST]
            peer.close()

    run_cluster(tmp_path, play, **SETTINGS)


def test_the_controller_authorizes_the_principal_of_the_client(tmp_path: Path) -> None:
    """The principal of the forwarding broker is not used for the authorization."""

    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        row, request = by_name["CreateAcls"], create_acls.Request(creations=[creation()])
        ask = forwarding(row, handler_of(row).handle)
        active = await cluster.leader()
        (other, *_) = (node for node_id, node in cluster.nodes.items() if node_id != active)
        for principal, code in ((BOB, ErrorCode.CLUSTER_AUTHORIZATION_FAILED), (ANONYMOUS, 0)):
            call = Call(row.key, row.max, "c", "127.0.0.1", 1, principal=principal)
            told = parse(row.response, row.max, await ask(other.broker, call, request))
            assert [each.error_code for each in told.results] == [code]

    run_cluster(tmp_path, play, **SETTINGS)


def test_on_the_controllers_listener_nothing_is_forwarded(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        active = await cluster.leader()
        for node_id, port in cluster.ports.items():
            peer = await Peer.dial(cluster.nodes[node_id].broker.world.network, "127.0.0.1", port)
            await peer.negotiate()
            assert set(peer.versions) == {api.key for api in API if "controller" in api.listens.value}
            told = await peer.ask("CreateTopics", wanted("a"))
            assert told.topics[0].error_code == (0 if node_id == active else ErrorCode.NOT_CONTROLLER)
            peer.close()

    run_cluster(tmp_path, play)


def test_a_request_survives_a_change_of_the_controller(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        active = await cluster.leader()
        other = next(node_id for node_id in cluster.nodes if node_id != active)
        peer = await dialled(cluster.nodes[other])
        first = await peer.ask("CreateTopics", wanted("before"))
        stopping = asyncio.ensure_future(cluster.stop(active))
        told = [await peer.ask("CreateTopics", wanted(f"t{number}")) for number in range(20)]
        await stopping
        told.append(await peer.ask("CreateTopics", wanted("after")))
        codes = {each.topics[0].error_code for each in (first, *told)}
        # if the old controller resigned in the middle of a request, the new one may handle the request again
        assert codes <= {0, ErrorCode.TOPIC_ALREADY_EXISTS}
        assert await cluster.leader() != active
        peer.close()

    run_cluster(tmp_path, play)


def test_a_request_to_the_controller_itself_survives_its_term(tmp_path: Path) -> None:
    """The controller cannot commit the change because the other voters are down. When they return, the response is that
    of a later controller."""

    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        active = await cluster.leader()
        asked = cluster.nodes[active]
        peer = await dialled(asked)
        epoch = asked.broker.quorum.epoch
        others = [node_id for node_id in cluster.nodes if node_id != active]
        for node_id in others:
            await cluster.drop(node_id)
        asking = asyncio.ensure_future(peer.ask("CreateTopics", wanted("t")))
        await cluster.until(lambda: not asked.broker.quorum.is_active, "its term ends")
        await cluster.start(*others)
        told = await asking
        assert told.topics[0].error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS), told.topics[0].error_message
        assert asked.broker.quorum.epoch > epoch
        peer.close()

    run_cluster(tmp_path, play)


def codes_in(message: Any) -> set[int]:
    """All error codes in a response, at any depth."""
    if isinstance(message, list):
        return set[int]().union(*map(codes_in, message))
    members = [getattr(message, name) for name in getattr(type(message), "__slots__", ())]
    own = {message.error_code} if hasattr(message, "error_code") else set()
    return own.union(*(codes_in(each) for each in members if isinstance(each, list) or hasattr(each, "__slots__")))


def a_request_of_each(name: str) -> list[tuple[str, Any]]:
    return [
        *((api, request) for api, request, _ in requests(name)),
        *((api, request) for api, (request, _) in REFUSED.items()),
    ]


def enveloped(api: str, request: Any) -> envelope.Request:
    """An Envelope with a request in its highest version, as another broker sends it."""
    frame = b"".join(encode_request(1, by_name[api], by_name[api].max, request, "tests"))[4:]
    return envelope.Request(
        request_data=frame, request_principal=b"\0\0\5User\2a\0\0", client_host_address=bytes([127, 0, 0, 1])
    )


def opened(api: str, told: envelope.Response) -> Any:
    assert told.response_data is not None
    _, body_at = parse_response_header(told.response_data, by_name[api], by_name[api].max)
    return parse(by_name[api].response, by_name[api].max, told.response_data, body_at)


def test_every_forwarded_request_survives_the_controllers_term(tmp_path: Path) -> None:
    """The controller cannot commit the change because the other voters are down. When they return, the response is that
    of a later controller. This is tested with requests to the controller and to a broker that forwards them.
    """

    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3, 7)
        active = await cluster.leader()
        controller = cluster.nodes[active]
        async with AsyncExitStack() as connections:
            tasks, forwarded = {}, {}
            others = [node_id for node_id in cluster.ports if node_id != active]
            for node_id in others:
                await cluster.drop(node_id)
            for node_id in (active, 7):
                for api, request in a_request_of_each(f"t{node_id}"):
                    peer = await dialled(cluster.nodes[node_id])
                    connections.callback(peer.close)
                    tasks[api, node_id] = asyncio.ensure_future(peer.ask(api, request))
            for api, request in a_request_of_each("t"):
                peer = await Peer.dial(controller.broker.world.network, "127.0.0.1", cluster.ports[active])
                connections.callback(peer.close)
                await peer.negotiate()
                forwarded[api] = asyncio.ensure_future(peer.ask("Envelope", enveloped(api, request)))
            await cluster.until(lambda: not controller.broker.quorum.is_active, "its term ends")
            for api, task in forwarded.items():
                told = await task
                if told.error_code != ErrorCode.NOT_CONTROLLER:
                    assert told.error_code == 0, (api, told.error_code)
                    assert ErrorCode.NOT_CONTROLLER not in codes_in(opened(api, told)), api
            await cluster.start(*others)
            for what, task in tasks.items():
                codes = codes_in(await task)
                assert codes, what
                assert not codes & {ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT}, (what, codes)

    run_cluster(tmp_path, play)


def test_a_new_topic_exists_on_every_node_when_the_response_is_sent(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3, 7)
        peers = [await dialled(node) for node in cluster.nodes.values()]
        for number in range(12):
            peer = peers[number % len(peers)]
            made = (await peer.ask("CreateTopics", wanted(f"t{number}"))).topics[0]
            assert made.error_code == 0
            for node_id, node in cluster.nodes.items():
                assert f"t{number}" in node.broker.metadata.image.topics, (number, node_id)
        for peer in peers:
            peer.close()

    run_cluster(tmp_path, play)


def test_long_requests_that_wait_for_a_controller_hold_no_place(tmp_path: Path) -> None:
    """Requests with many elements wait for a controller. Other long requests are handled in the meantime."""
    names = [f"no{number}" for number in range(ELEMENTS_AT_ONCE + 100)]
    asked = delete_topics.Request(topics=[delete_topics.DeleteTopicState(name=name) for name in names])
    topics = [metadata.MetadataRequestTopic(name=name) for name in names]

    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        await cluster.leader()
        for node_id in (2, 3):
            await cluster.drop(node_id)
        node = cluster.nodes[1]
        while node.broker.controller.is_active:
            await asyncio.sleep(0.01)
        async with AsyncExitStack() as clients:
            for _ in range(REQUESTS_MAX):
                one = await clients.enter_async_context(raw(node))
                one.ask(1, "DeleteTopics", asked, 6)
            while node.broker.long_work.parked < REQUESTS_MAX * len(names):
                await asyncio.sleep(0)
            other = await clients.enter_async_context(raw(node))
            other.ask(1, "Metadata", metadata.Request(topics=topics, allow_auto_topic_creation=False), 12)
            assert await other.frame()
        while node.broker.long_work.parked:
            await asyncio.sleep(0)

    run_cluster(tmp_path, play)
