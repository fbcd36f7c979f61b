"""Tests of ACLs: Kafka's tool and librdkafka set, list and remove them, and they take effect. Every client has the
principal User:ANONYMOUS."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from compat_tests import pages
from compat_tests.changing import until
from compat_tests.conftest import Running, start_target
from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc import create_acls, delete_acls, describe_acls
from oracle.asking import Conversation
from oracle.takeover import KAFKA, KPYBROKER, Home
from oracle.target import steady_port
from oracle.tools import tool

STANDARD = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
SUPER_USER = {**STANDARD, "super.users": "User:ANONYMOUS"}
EVERYBODY = {**STANDARD, "allow.everyone.if.no.acl.found": "true"}
TIMEOUT_S = 30
PREFIXED = ("--resource-pattern-type", "prefixed")
ANY = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


@pytest.fixture(scope="module")
def broker(target_name: str) -> Iterator[Running]:
    """A separate broker, on which all clients are super users."""
    with start_target(target_name, SUPER_USER) as broker:
        yield broker


@pytest.fixture
def admin(broker: Running) -> Iterator[AdminClient]:
    """An admin client. All ACLs are removed after the test."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    yield admin
    admin.delete_acls([ANY])[ANY].result(TIMEOUT_S)
    until(lambda: not listed(admin), "no ACL is left")


def acl(
    name: str = "orders",
    principal: str = "User:ann",
    operation: AclOperation = AclOperation.READ,
    permission: AclPermissionType = AclPermissionType.ALLOW,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    resource: ResourceType = ResourceType.TOPIC,
    host: str = "*",
) -> AclBinding:
    return AclBinding(resource, name, pattern, principal, host, operation, permission)


def listed(admin: AdminClient, wanted: AclBindingFilter = ANY) -> set[AclBinding]:
    return set(admin.describe_acls(wanted).result(TIMEOUT_S))


def create(admin: AdminClient, *acls: AclBinding) -> None:
    for made in admin.create_acls(list(acls)).values():
        made.result(TIMEOUT_S)


def matching(name: str) -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.TOPIC, name, ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
    )


class TestAdmin:
    """librdkafka's AdminClient."""

    def test_acls_are_created_listed_and_deleted(self, admin: AdminClient) -> None:
        mine = acl()
        prefixed = acl("ord", "User:bob", pattern=ResourcePatternType.PREFIXED)
        denied = acl("*", "User:*", AclOperation.WRITE, AclPermissionType.DENY, host="10.0.0.1")
        group = acl("app", resource=ResourceType.GROUP)
        every = {mine, prefixed, denied, group}
        create(admin, *every)
        until(lambda: listed(admin) == every, "all are listed")
        create(admin, mine, group)
        assert listed(admin) == every
        assert listed(admin, matching("orders")) == {mine, prefixed, denied}
        assert listed(admin, matching("other")) == {denied}
        gone = matching("order")
        assert set(admin.delete_acls([gone])[gone].result(TIMEOUT_S)) == {prefixed, denied}
        until(lambda: listed(admin) == {mine, group}, "the other ACLs are removed")

    def test_a_principal_has_a_colon(self, admin: AdminClient) -> None:
        wrong = acl(principal="ann")
        with pytest.raises(KafkaException) as refusal:
            admin.create_acls([wrong])[wrong].result(TIMEOUT_S)
        assert refusal.value.args[0].code() == KafkaError.INVALID_REQUEST

    def test_thousands_are_listed_and_deleted_at_once(self, admin: AdminClient) -> None:
        many = [acl(f"t{number}", host=f"10.0.{number // 256}.{number % 256}") for number in range(3000)]
        create(admin, *many)
        until(lambda: listed(admin) == set(many), "all are listed")
        gone = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, "User:ann", None, AclOperation.ANY, AclPermissionType.ANY
        )
        assert len(admin.delete_acls([gone])[gone].result(TIMEOUT_S)) == 3000
        until(lambda: not listed(admin), "none is left")


class TestTool:
    """kafka-acls."""

    def test_it_adds_lists_and_removes(self, broker: Running, admin: AdminClient) -> None:
        def acls(*args: str) -> str:
            return tool("kafka-acls", *args, bootstrap=broker.bootstrap).ok()

        def entries(told: str) -> list[str]:
            return sorted(line.strip() for line in told.splitlines() if line.strip().startswith("(principal="))

        acls("--add", "--allow-principal", "User:ann", "--producer", "--topic", "orders")
        acls("--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "All", "--cluster")
        acls("--add", "--allow-principal", "User:*", "--operation", "Read", "--group", "app-", *PREFIXED)
        until(lambda: len(listed(admin)) == 5, "all are there")
        assert entries(acls("--list")) == [
            "(principal=User:*, host=*, operation=READ, permissionType=ALLOW)",
            "(principal=User:ann, host=*, operation=CREATE, permissionType=ALLOW)",
            "(principal=User:ann, host=*, operation=DESCRIBE, permissionType=ALLOW)",
            "(principal=User:ann, host=*, operation=WRITE, permissionType=ALLOW)",
            "(principal=User:bob, host=10.0.0.1, operation=ALL, permissionType=DENY)",
        ]
        told = acls("--list", "--group", "app-7", "--resource-pattern-type", "match")
        assert "ResourcePattern(resourceType=GROUP, name=app-, patternType=PREFIXED)" in told
        acls("--remove", "--topic", "orders", "--force")
        until(lambda: len(listed(admin)) == 2, "the ACLs of the topic are removed")
        assert "orders" not in acls("--list")


def test_acls_survive_a_kill(broker: Running, admin: AdminClient) -> None:
    create(admin, acl(), acl("o", pattern=ResourcePatternType.PREFIXED))
    until(lambda: len(listed(admin)) == 2, "both are there")
    before = listed(admin)
    broker.kill9()
    broker.restart()
    until(lambda: listed(admin) == before, "both exist again")


@pytest.mark.parametrize("api", ["CreateAcls", "DeleteAcls", "DescribeAcls"])
def test_an_element_of_code_0_closes_the_connection(broker: Running, api: str) -> None:
    host, _, port = broker.bootstrap.rpartition(":")
    rpc, request = {
        "CreateAcls": (create_acls, create_acls.Request(creations=[create_acls.AclCreation()])),
        "DeleteAcls": (delete_acls, delete_acls.Request(filters=[delete_acls.DeleteAclsFilter()])),
        "DescribeAcls": (describe_acls, describe_acls.Request()),
    }[api]
    with contextlib.closing(Conversation((host, int(port)), timeout_s=30)) as raw, pytest.raises(ConnectionError):
        raw.ask(api, 3, request, rpc.Response)


def test_ten_thousand_in_one_request_and_no_more(broker: Running, admin: AdminClient) -> None:
    host, _, port = broker.bootstrap.rpartition(":")
    many = [
        create_acls.AclCreation(
            resource_type=2,
            resource_name=f"t{number}",
            principal="User:ann",
            host="*",
            operation=3,
            permission_type=3,
        )
        for number in range(10_001)
    ]
    with contextlib.closing(Conversation((host, int(port)), timeout_s=60)) as raw:
        told = raw.ask("CreateAcls", 3, create_acls.Request(creations=many), create_acls.Response)
        assert {each.error_code for each in told.results} == {ErrorCode.POLICY_VIOLATION}
        told = raw.ask("CreateAcls", 3, create_acls.Request(creations=many[1:]), create_acls.Response)
        assert {each.error_code for each in told.results} == {0}
    until(lambda: len(listed(admin)) == 10_000, "all are there")


def test_a_refused_client_gets_the_authorization_error(target_name: str) -> None:
    """Without an ACL on a resource everything is allowed; the first ACL on the cluster denies all users that it does
    not name."""
    with start_target(target_name, EVERYBODY) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("open", 1, 1)])["open"].result(TIMEOUT_S)
        every, deny = AclOperation.ALL, AclPermissionType.DENY
        cluster = ResourceType.BROKER  # librdkafka's name for the code 4
        create(admin, acl("kafka-cluster", "User:ANONYMOUS", every, resource=cluster))
        no_writes = acl("op", "User:ANONYMOUS", AclOperation.WRITE, deny, ResourcePatternType.PREFIXED)
        create(admin, acl("*", "User:ANONYMOUS", every), no_writes)

        def operations() -> set[str]:
            [found] = admin.describe_topics(TopicCollection(["open"]), include_authorized_operations=True).values()
            return {each.name for each in found.result(TIMEOUT_S).authorized_operations}

        may = {"READ", "CREATE", "DELETE", "ALTER", "DESCRIBE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"}
        until(lambda: operations() == may, "the denial counts")
        create(admin, acl("kafka-cluster", "User:ANONYMOUS", AclOperation.ALTER, deny, resource=cluster))

        def code() -> int:
            other = acl("other")
            error = admin.create_acls([other])[other].exception(TIMEOUT_S)
            return 0 if error is None else int(error.args[0].code())

        until(lambda: code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED, "the denial counts")
        assert len(listed(admin)) >= 4, "the topic may still be described"


@pytest.mark.full
def test_acls_move_to_kpybroker_and_back() -> None:
    """kpybroker lists the ACLs that Apache Kafka has written, and Apache Kafka lists the changes that kpybroker has
    made."""
    kept, gone, added = acl("kept"), acl("gone", "User:bob"), acl("ad", pattern=ResourcePatternType.PREFIXED)
    with Home(properties=SUPER_USER) as home:
        admin = AdminClient({"bootstrap.servers": home.bootstrap})
        home.start(KAFKA)
        create(admin, kept, gone)
        until(lambda: listed(admin) == {kept, gone}, "both are there")
        home.stop()
        home.start(KPYBROKER)
        assert listed(admin) == {kept, gone}
        create(admin, kept, added)
        removed = matching("gone")
        assert admin.delete_acls([removed])[removed].result(TIMEOUT_S) == [gone]
        home.stop()
        home.start(KAFKA)
        until(lambda: listed(admin) == {kept, added}, "all changes are listed")
        home.stop()
        home.start(KPYBROKER)
        assert listed(admin) == {kept, added}
        home.stop()


@pytest.mark.full
def test_the_page_works(tmp_path: Path) -> None:
    """The commands of the page run with Kafka's own tools, and the log shows the allowed operations."""
    said = pages.run("security-acls.md", tmp_path, {"PORT": str(steady_port())})
    assert "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)" in said
    assert "Principal = User:ANONYMOUS is Allowed operation = DESCRIBE from host = 127.0.0.1 on resource = " in said
