"""Tests of the clients' admin APIs: topics, configs, partitions, groups, offsets."""

from collections.abc import Callable, Iterator

import aiokafka.admin
import kafka.admin
import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka.errors import InvalidTopicError, TopicAlreadyExistsError, UnknownTopicOrPartitionError

from compat_tests.client_aiokafka import wait
from compat_tests.clients import CLIENTS
from compat_tests.conftest import MakeTopic, Running, Settled
from compat_tests.test_consume import poll_until
from compat_tests.vocabulary import Message, closing, send_all

TIMEOUT_S = 30
EMPTY = ("Empty", "classic", "consumer")
CLIENT = CLIENTS[0]


def code(refusal: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(refusal.value.args[0].code())


def fill(broker: Running, topic: str, count: int) -> None:
    producer = CLIENT.producer(broker.bootstrap)
    with closing(producer):
        send_all(producer, topic, [Message(b"", timestamp_ms=1_000_000 + n, partition=0) for n in range(count)])


def consume(broker: Running, topic: str, group: str, count: int) -> None:
    consumer = CLIENT.consumer(broker.bootstrap, group=group)
    with closing(consumer):
        consumer.subscribe([topic])
        assert len(poll_until(consumer, lambda found: len(found) >= count)) == count
        consumer.commit()


class TestConfluentKafka:
    """librdkafka's admin client."""

    def test_topics(self, broker: Running, admin: AdminClient, unique: Callable[[], str], settled: Settled) -> None:
        name = unique()
        admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "123456"})])[name].result(TIMEOUT_S)
        settled(lambda: name in admin.list_topics(timeout=TIMEOUT_S).topics)
        described = admin.describe_topics(TopicCollection([name]))[name].result(TIMEOUT_S)
        assert described.name == name
        assert not described.is_internal
        assert [partition.id for partition in described.partitions] == [0, 1, 2]
        assert len({str(described.topic_id)}) == 1
        for partition in described.partitions:
            assert [node.id for node in partition.replicas] == [node.id for node in partition.isr]
            assert partition.leader.id == partition.replicas[0].id
        with pytest.raises(KafkaException) as refusal:
            admin.create_topics([NewTopic(name, 3, 1)])[name].result(TIMEOUT_S)
        assert code(refusal) == KafkaError.TOPIC_ALREADY_EXISTS
        admin.delete_topics([name])[name].result(TIMEOUT_S)
        settled(lambda: name not in admin.list_topics(timeout=TIMEOUT_S).topics)
        with pytest.raises(KafkaException) as refusal:
            admin.delete_topics([name])[name].result(TIMEOUT_S)
        assert code(refusal) == KafkaError.UNKNOWN_TOPIC_OR_PART

    @pytest.mark.parametrize(
        ("name", "partitions", "replicas", "config", "error"),
        [
            ("a b", 1, 1, {}, KafkaError.TOPIC_EXCEPTION),
            ("..", 1, 1, {}, KafkaError.TOPIC_EXCEPTION),
            ("x" * 250, 1, 1, {}, KafkaError.TOPIC_EXCEPTION),
            ("ok", 0, 1, {}, KafkaError.INVALID_PARTITIONS),
            ("ok", 1, 2, {}, KafkaError.INVALID_REPLICATION_FACTOR),
            ("ok", 1, 1, {"no.such.config": "1"}, KafkaError.INVALID_CONFIG),
            ("ok", 1, 1, {"retention.ms": "soon"}, KafkaError.INVALID_CONFIG),
            ("ok", 1, 1, {"cleanup.policy": "burn"}, KafkaError.INVALID_CONFIG),
        ],
    )
    def test_refused_topics(
        self,
        name: str,
        partitions: int,
        replicas: int,
        config: dict[str, str],
        error: int,
        broker: Running,
        admin: AdminClient,
        unique: Callable[[], str],
    ) -> None:
        name = unique() if name == "ok" else name
        with pytest.raises(KafkaException) as refusal:
            admin.create_topics([NewTopic(name, partitions, replicas, config=config)])[name].result(TIMEOUT_S)
        assert code(refusal) == error
        assert name not in admin.list_topics(timeout=TIMEOUT_S).topics

    def test_validation_creates_nothing(self, broker: Running, admin: AdminClient, unique: Callable[[], str]) -> None:
        name = unique()
        admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(TIMEOUT_S)
        assert name not in admin.list_topics(timeout=TIMEOUT_S).topics

    def test_a_recreated_topic_has_another_id(self, broker: Running, admin: AdminClient, make_topic: MakeTopic) -> None:
        name = make_topic()
        fill(broker, name, 10)
        first = admin.describe_topics(TopicCollection([name]))[name].result(TIMEOUT_S).topic_id
        admin.delete_topics([name])[name].result(TIMEOUT_S)
        admin.create_topics([NewTopic(name, 1, 1, config={"retention.ms": "-1"})])[name].result(TIMEOUT_S)
        assert str(admin.describe_topics(TopicCollection([name]))[name].result(TIMEOUT_S).topic_id) != str(first)
        fill(broker, name, 1)
        at = TopicPartition(name, 0)
        assert admin.list_offsets({at: OffsetSpec.latest()})[at].result(TIMEOUT_S).offset == 1

    def test_partitions(self, broker: Running, admin: AdminClient, make_topic: MakeTopic, settled: Settled) -> None:
        name = make_topic(2)
        admin.create_partitions([NewPartitions(name, 5)])[name].result(TIMEOUT_S)
        described = TopicCollection([name])
        settled(lambda: len(admin.describe_topics(described)[name].result(TIMEOUT_S).partitions) == 5)
        for count in (5, 3):
            with pytest.raises(KafkaException) as refusal:
                admin.create_partitions([NewPartitions(name, count)])[name].result(TIMEOUT_S)
            assert code(refusal) == KafkaError.INVALID_PARTITIONS

    def test_configs(self, broker: Running, admin: AdminClient, make_topic: MakeTopic) -> None:
        topic = make_topic(retention_ms=1000)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

        def described() -> dict[str, ConfigEntry]:
            found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
            return found

        before = described()
        assert before["retention.ms"].value == "1000"
        assert not before["retention.ms"].is_default
        assert before["segment.bytes"].value == "1073741824"
        assert before["segment.bytes"].is_default
        changes = ConfigResource(
            ConfigResource.Type.TOPIC,
            topic,
            incremental_configs=[
                ConfigEntry("segment.ms", "60000", incremental_operation=AlterConfigOpType.SET),
                ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
                ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
            ],
        )
        admin.incremental_alter_configs([changes])[changes].result(TIMEOUT_S)
        after = described()
        assert after["segment.ms"].value == "60000"
        assert after["retention.ms"].value == "604800000"
        assert set(after["cleanup.policy"].value.split(",")) == {"delete", "compact"}
        assert after.keys() == before.keys()
        wrong = ConfigResource(
            ConfigResource.Type.TOPIC,
            topic,
            incremental_configs=[ConfigEntry("segment.ms", "-5", incremental_operation=AlterConfigOpType.SET)],
        )
        with pytest.raises(KafkaException) as refusal:
            admin.incremental_alter_configs([wrong])[wrong].result(TIMEOUT_S)
        assert code(refusal) == KafkaError.INVALID_CONFIG

    def test_broker_configs(self, broker: Running, admin: AdminClient) -> None:
        [node] = admin.describe_cluster().result(TIMEOUT_S).nodes
        resource = ConfigResource(ConfigResource.Type.BROKER, str(node.id))
        found = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
        assert found["node.id"].value == str(node.id)
        assert found["node.id"].is_read_only
        assert len(found) > 200
        assert found["log.retention.hours"].value == "168"

    def test_scram_credentials(self, admin: AdminClient, unique: Callable[[], str], settled: Settled) -> None:
        ann, nobody = unique(), unique()
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
        added = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(ann, info, b"secret")])
        assert added[ann].result(TIMEOUT_S) is None

        def described() -> list[tuple[ScramMechanism, int]]:
            found = admin.describe_user_scram_credentials().result(TIMEOUT_S)
            infos = found[ann].scram_credential_infos if ann in found else ()
            return [(each.mechanism, each.iterations) for each in infos]

        settled(lambda: described() == [(ScramMechanism.SCRAM_SHA_512, 8192)])
        removals = [UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512) for user in (ann, nobody)]
        removed = admin.alter_user_scram_credentials(removals)
        assert removed[ann].result(TIMEOUT_S) is None
        with pytest.raises(KafkaException) as refusal:
            removed[nobody].result(TIMEOUT_S)
        assert code(refusal) == KafkaError.RESOURCE_NOT_FOUND
        settled(lambda: described() == [])
        with pytest.raises(KafkaException) as refusal:
            admin.describe_user_scram_credentials([ann])[ann].result(TIMEOUT_S)
        assert code(refusal) == KafkaError.RESOURCE_NOT_FOUND

    def test_there_are_no_acls(self, admin: AdminClient) -> None:
        one = AclBinding(
            ResourceType.TOPIC,
            "a",
            ResourcePatternType.LITERAL,
            "User:a",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        with pytest.raises(KafkaException) as refusal:
            admin.create_acls([one])[one].result(TIMEOUT_S)
        assert code(refusal) == KafkaError.SECURITY_DISABLED

    def test_offsets(self, broker: Running, admin: AdminClient, make_topic: MakeTopic) -> None:
        at = TopicPartition(make_topic(), 0)
        fill(broker, at.topic, 100)

        def offset(spec: OffsetSpec) -> int:
            [found] = admin.list_offsets({at: spec}, isolation_level=IsolationLevel.READ_COMMITTED).values()
            return int(found.result(TIMEOUT_S).offset)

        assert offset(OffsetSpec.earliest()) == 0
        assert offset(OffsetSpec.latest()) == 100
        assert offset(OffsetSpec.max_timestamp()) == 99
        assert offset(OffsetSpec.for_timestamp(1_000_040)) == 40
        assert offset(OffsetSpec.for_timestamp(1_000_100)) == -1
        cut = TopicPartition(at.topic, 0, 30)
        assert admin.delete_records([cut])[cut].result(TIMEOUT_S).low_watermark == 30
        assert offset(OffsetSpec.earliest()) == 30
        beyond = TopicPartition(at.topic, 0, 101)
        with pytest.raises(KafkaException) as refusal:
            admin.delete_records([beyond])[beyond].result(TIMEOUT_S)
        assert code(refusal) == KafkaError.OFFSET_OUT_OF_RANGE

    def test_groups(
        self, broker: Running, admin: AdminClient, make_topic: MakeTopic, unique: Callable[[], str]
    ) -> None:
        topic, group = make_topic(), unique()
        fill(broker, topic, 20)
        consumer = CLIENT.consumer(broker.bootstrap, group=group)
        with closing(consumer):
            consumer.subscribe([topic])
            poll_until(consumer, lambda found: len(found) >= 20)
            consumer.commit()
            described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
            assert described.state == ConsumerGroupState.STABLE
            assert described.partition_assignor == "range"
            [member] = described.members
            assert [(at.topic, at.partition) for at in member.assignment.topic_partitions] == [(topic, 0)]
            assert group in {one.group_id for one in admin.list_consumer_groups().result(TIMEOUT_S).valid}
            with pytest.raises(KafkaException) as refusal:
                admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
            assert code(refusal) == KafkaError.NON_EMPTY_GROUP
        described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
        assert described.state == ConsumerGroupState.EMPTY
        empty = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(TIMEOUT_S).valid
        assert group in {one.group_id for one in empty}
        asked = ConsumerGroupTopicPartitions(group)
        [found] = admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_S).topic_partitions
        assert (found.topic, found.partition, found.offset) == (topic, 0, 20)
        moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7)])
        admin.alter_consumer_group_offsets([moved])[group].result(TIMEOUT_S)
        [found] = admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_S).topic_partitions
        assert found.offset == 7
        consume(broker, topic, group, 13)
        admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
        assert group not in {one.group_id for one in admin.list_consumer_groups().result(TIMEOUT_S).valid}
        with pytest.raises(KafkaException) as refusal:
            admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
        assert code(refusal) == KafkaError.GROUP_ID_NOT_FOUND

    def test_deleting_a_topic_deletes_its_commits(
        self, broker: Running, admin: AdminClient, make_topic: MakeTopic, unique: Callable[[], str]
    ) -> None:
        topic, group = make_topic(), unique()
        fill(broker, topic, 5)
        consume(broker, topic, group, 5)
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
        [found] = admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_S).topic_partitions
        assert found.offset < 0

    def test_cluster(self, broker: Running, admin: AdminClient) -> None:
        cluster = admin.describe_cluster().result(TIMEOUT_S)
        assert len(cluster.cluster_id) == 22
        [node] = cluster.nodes
        assert cluster.controller.id == node.id
        assert f"{node.host}:{node.port}" == broker.bootstrap


class TestKafkaPython:
    """kafka-python's admin client."""

    @pytest.fixture
    def client(self, broker: Running) -> Iterator[kafka.admin.KafkaAdminClient]:
        client = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        yield client
        client.close()

    def test_topics_and_partitions(
        self, client: kafka.admin.KafkaAdminClient, unique: Callable[[], str], settled: Settled
    ) -> None:
        name = unique()
        client.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
        settled(lambda: name in client.list_topics())
        with pytest.raises(TopicAlreadyExistsError):
            client.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
        with pytest.raises(InvalidTopicError):
            client.create_topics({"a b": {"num_partitions": 2, "replication_factor": 1}})
        client.create_partitions({name: 4})
        settled(lambda: len(client.describe_topics([name])[0]["partitions"]) == 4)
        client.delete_topics([name])
        settled(lambda: name not in client.list_topics())
        with pytest.raises(UnknownTopicOrPartitionError):
            client.delete_topics([name])

    def test_configs(self, client: kafka.admin.KafkaAdminClient, make_topic: MakeTopic) -> None:
        topic = make_topic()
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic, {"retention.ms": "777"})
        client.alter_configs([resource])
        assert "777" in str(client.describe_configs([resource]))

    def test_groups_and_offsets(
        self, broker: Running, client: kafka.admin.KafkaAdminClient, make_topic: MakeTopic, unique: Callable[[], str]
    ) -> None:
        topic, group = make_topic(), unique()
        fill(broker, topic, 10)
        consume(broker, topic, group, 10)
        [listed] = [one for one in client.list_groups() if one["group_id"] == group]
        assert (listed["group_state"], listed["group_type"], listed["protocol_type"]) == (
            "Empty",
            "classic",
            "consumer",
        )
        described = client.describe_groups([group])[group]
        assert (described["group_state"], described["members"]) == ("Empty", [])
        [(at, found)] = client.list_group_offsets([group])[group].items()
        assert (at.topic, at.partition, found.offset) == (topic, 0, 10)
        assert client.delete_groups([group]) == {group: "OK"}
        assert client.delete_groups([group]) == {group: "GroupIdNotFoundError"}

    def test_cluster_and_directories(self, client: kafka.admin.KafkaAdminClient, make_topic: MakeTopic) -> None:
        topic = make_topic()
        assert len(client.describe_cluster()["brokers"]) == 1
        assert topic in str(client.describe_log_dirs())


class TestAiokafka:
    """aiokafka's admin client, with older versions of the APIs."""

    def test_topics_and_groups(
        self, broker: Running, make_topic: MakeTopic, unique: Callable[[], str], settled: Settled
    ) -> None:
        at_once = settled.at_once
        topic, group, name = make_topic(), unique(), unique()
        fill(broker, topic, 10)
        consume(broker, topic, group, 10)

        async def administer() -> None:
            client = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
            await client.start()
            try:
                await client.create_topics([aiokafka.admin.NewTopic(name, 2, 1, topic_configs={"retention.ms": "777"})])
                await client.create_partitions({name: aiokafka.admin.NewPartitions(3)})
                while len((await client.describe_topics([name]))[0]["partitions"]) != 3:
                    assert not at_once
                resource = aiokafka.admin.config_resource.ConfigResource(
                    aiokafka.admin.config_resource.ConfigResourceType.TOPIC, name
                )
                assert "777" in str(await client.describe_configs([resource]))
                assert group in str(await client.list_consumer_groups())
                assert "Empty" in str(await client.describe_consumer_groups([group]))
                offsets = await client.list_consumer_group_offsets(group)
                assert [(at.topic, at.partition, found.offset) for at, found in offsets.items()] == [(topic, 0, 10)]
                await client.delete_topics([name])
                while name in await client.list_topics():
                    assert not at_once
            finally:
                await client.close()

        wait(administer(), TIMEOUT_S)
