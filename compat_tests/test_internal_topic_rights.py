"""A streams group whose client may not create the internal topics: they are created once it may."""

import asyncio

from compat_tests.conftest import Running
from compat_tests.test_subscription_rights import PAUSE_S, STARTING, Cluster
from kpybroker.client.dialer import Dialer
from kpybroker.client.peer import Peer
from kpybroker.config.login import Login
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.wire.rpc import find_coordinator
from kpybroker.wire.rpc.streams_group_heartbeat import Request, Response, TopicInfo
from kpybroker.world.real import real_world
from oracle.authorization import PASSWORD, USER
from oracle.authorization_matrix import properties, some_ports
from oracle.broker import KPyBroker
from oracle.kafka import Kafka
from oracle.streams_scenes import passing

GROUP, SOURCE, CHANGELOG = "app", "lines", "app-changelog"
MISSING_INTERNAL_TOPICS = 3


async def join(peer: Peer) -> Response:
    """Join, once the coordinator is ready."""
    request = Request(
        group_id=GROUP,
        member_id="m",
        rebalance_timeout_ms=60_000,
        topology=passing(SOURCE, state_changelog_topics=[TopicInfo(name=CHANGELOG)]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
    )
    while True:
        told: Response = await peer.ask("StreamsGroupHeartbeat", request)
        if told.error_code not in STARTING:
            assert told.error_code == 0, told
            return told
        await asyncio.sleep(PAUSE_S)


def missing(told: Response) -> str | None:
    """The detail of the status that internal topics are missing."""
    return next((each.status_detail for each in told.status or () if each.status_code == MISSING_INTERNAL_TOPICS), None)


async def play(port: int, named_port: int) -> None:
    network = real_world().network
    admin = await Dialer(network).meet("127.0.0.1", port, client_id="admin")
    cluster = Cluster(admin, named_port)
    await cluster.make(SOURCE)
    await cluster.allow(USER, Operation.READ, AclResource.GROUP, GROUP)
    await cluster.allow(USER, Operation.DESCRIBE, AclResource.TOPIC, SOURCE, CHANGELOG)
    asked = find_coordinator.Request(key_type=0, coordinator_keys=[GROUP])
    while (await admin.ask("FindCoordinator", asked)).coordinators[0].error_code:
        await asyncio.sleep(PAUSE_S)
    peer = await Dialer(network, Login("PLAIN", USER, PASSWORD)).meet("127.0.0.1", named_port, client_id=USER)
    for _ in range(3):
        assert missing(await join(peer)) == (
            f"Internal topics are missing: {CHANGELOG}; Unauthorized to CREATE on topics {CHANGELOG}."
        )
    await cluster.allow(USER, Operation.CREATE, AclResource.TOPIC, CHANGELOG)
    while (why := missing(await join(peer))) is not None:
        assert "Creation failed" not in why
        await asyncio.sleep(PAUSE_S)
    peer.close()
    admin.close()


def test_internal_topics_are_created_with_the_rights_of_the_client(target_name: str) -> None:
    ports = some_ports()
    given = properties(ports)
    broker: Running = KPyBroker(port=ports.broker, properties=given)
    if target_name == "kafka":
        broker = kafka = Kafka(port=ports.broker, properties=given, jvm=("-XX:TieredStopAtLevel=1",))
        kafka.controller_port = ports.controller
    with broker:
        asyncio.run(play(ports.broker, ports.named))
