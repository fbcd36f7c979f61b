"""Scenes of a broker with Kafka's StandardAuthorizer: which ACLs can be set, listed and removed, and which operations
they authorize."""

from typing import Any

from kpybroker.wire.rpc import (
    create_acls,
    create_topics,
    delete_acls,
    describe_acls,
    describe_cluster,
    describe_topic_partitions,
    metadata,
)
from oracle.requests import versions
from oracle.scenes import Ask

STANDARD = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
SUPER_USER = {**STANDARD, "super.users": "User:ANONYMOUS"}
EVERYBODY = {**STANDARD, "allow.everyone.if.no.acl.found": "true"}
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER = range(2, 8)
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = range(2, 9)
DENY, ALLOW = 2, 3


def _acl(name: str = "orders", resource: int = TOPIC, **fields: Any) -> Any:
    """A CreateAcls row; by default, ann may read the topic from every host."""
    acl = {"pattern": LITERAL, "principal": "User:ann", "host": "*", "operation": READ, "permission": ALLOW, **fields}
    return create_acls.AclCreation(
        resource_type=resource,
        resource_name=name,
        resource_pattern_type=acl["pattern"],
        principal=acl["principal"],
        host=acl["host"],
        operation=acl["operation"],
        permission_type=acl["permission"],
    )


def _filter(kind: Any, **fields: Any) -> Any:
    """A DescribeAcls request or a filter for DeleteAcls; by default, it selects all ACLs."""
    wanted = {
        "resource": ANY,
        "name": None,
        "pattern": ANY,
        "principal": None,
        "host": None,
        "operation": ANY,
        "permission": ANY,
        **fields,
    }
    return kind(
        resource_type_filter=wanted["resource"],
        resource_name_filter=wanted["name"],
        pattern_type_filter=wanted["pattern"],
        principal_filter=wanted["principal"],
        host_filter=wanted["host"],
        operation=wanted["operation"],
        permission_type=wanted["permission"],
    )


FILTERS: dict[str, dict[str, Any]] = {
    "all of them": {},
    "topics": {"resource": TOPIC},
    "a name": {"resource": TOPIC, "name": "orders"},
    "a name, literal": {"resource": TOPIC, "name": "orders", "pattern": LITERAL},
    "a name, prefixed": {"resource": TOPIC, "name": "orders", "pattern": PREFIXED},
    "a name, match": {"resource": TOPIC, "name": "orders-of-today", "pattern": MATCH},
    "a name of any type, match": {"name": "orders", "pattern": MATCH},
    "a star": {"resource": TOPIC, "name": "*", "pattern": LITERAL},
    "a star, match": {"resource": TOPIC, "name": "*", "pattern": MATCH},
    "no name, match": {"resource": TOPIC, "pattern": MATCH},
    "an empty name": {"resource": TOPIC, "name": ""},
    "a principal": {"principal": "User:bob"},
    "everybody": {"principal": "User:*"},
    "an empty principal": {"principal": ""},
    "no principal": {"principal": "bob"},
    "a host": {"host": "127.0.0.1"},
    "an operation": {"operation": WRITE},
    "the operation ALL": {"operation": ALL},
    "denials": {"permission": DENY},
    "one": {
        "resource": TOPIC,
        "name": "orders",
        "pattern": LITERAL,
        "principal": "User:ann",
        "host": "*",
        "operation": READ,
        "permission": ALLOW,
    },
    "the cluster": {"resource": CLUSTER},
    "nobody": {"principal": "User:nobody"},
}


class AclScenes:
    """Sends requests as a super user."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.version = 3

    def all(self) -> None:
        for version in versions("DescribeAcls"):
            self.version = version
            self.describe("none is there")
            self.create("nothing")
            self.some()
            self.delete("nothing")
            self.delete("nobody's", {"principal": "User:nobody"})
            self.delete("of ann, and of ann and of others", {"principal": "User:ann"}, {"resource": TOPIC})
            self.describe("what is left")
            self.delete("the same one twice", {"principal": "User:bob"}, {"principal": "User:bob"})
            self.delete("all of them", {})
            self.describe("none is left")
        self.wrong()
        self.selected()

    def some(self) -> None:
        acls = {
            "one": [_acl()],
            "the same one": [_acl()],
            "twice": [_acl("twice"), _acl("twice")],
            "several": [
                _acl("orders", principal="User:bob", operation=WRITE, permission=DENY, host="127.0.0.1"),
                _acl("orders-", pattern=PREFIXED, principal="User:bob"),
                _acl("o", pattern=PREFIXED, principal="User:*", operation=ALL),
                _acl("*", principal="User:carl"),
                _acl("*", pattern=PREFIXED, principal="User:carl"),
                _acl("orders", GROUP),
                _acl("kafka-cluster", CLUSTER, operation=ALTER, principal="User:dora"),
                _acl("orders", TRANSACTIONAL_ID, operation=WRITE),
                _acl("token", DELEGATION_TOKEN, operation=DESCRIBE),
                _acl("User:ann", USER, operation=13),
                _acl("payments", principal="User:CN=Duke, O=Java"),
                _acl("payments", principal="Group:staff", host="a host"),
                _acl("orders", CLUSTER),
            ],
        }
        for note, creations in acls.items():
            self.create(note, *creations)
        self.describe("some are there")

    def wrong(self) -> None:
        self.version = 3
        creations = {
            "any type": _acl(resource=ANY),
            "another cluster": _acl("cluster", CLUSTER),
            "no name": _acl(""),
            "no name of a cluster": _acl("", CLUSTER),
            "any pattern": _acl(pattern=ANY),
            "match": _acl(pattern=MATCH),
            "any operation": _acl(operation=ANY),
            "any permission": _acl(permission=ANY),
            "no principal": _acl(principal="ann"),
            "an empty principal": _acl(principal=""),
            "a principal without a name": _acl(principal="User:"),
            "a principal without a type": _acl(principal=":ann"),
            "an empty host": _acl(host=""),
            "a range of hosts": _acl(host="10.0.0.0/8"),
            "an operation that topics do not have": _acl(operation=13),
            "a prefix of the cluster": _acl("kafka-cluster", CLUSTER, pattern=PREFIXED),
            "a strange name": _acl("no topic can have this\n"),
        }
        for note, creation in creations.items():
            self.create(note, creation)
        self.create("right and wrong", _acl("right"), _acl(""), _acl("right as well"))
        self.describe("after some valid ones")
        self.delete("all of them", {})

    def selected(self) -> None:
        self.some()
        for note, fields in FILTERS.items():
            self.describe(note, **fields)
        for note, fields in reversed(FILTERS.items()):
            self.delete(note, fields)

    def create(self, note: str, *creations: Any) -> Any:
        told = self.ask("CreateAcls", self.version, create_acls.Request(creations=list(creations)), note)
        self.settle(note)
        return told

    def delete(self, note: str, *filters: dict[str, Any]) -> Any:
        asked = [_filter(delete_acls.DeleteAclsFilter, **each) for each in filters]
        told = self.ask("DeleteAcls", self.version, delete_acls.Request(filters=asked), note)
        self.settle(note)
        return told

    def describe(self, note: str, **fields: Any) -> Any:
        return self.ask("DescribeAcls", self.version, _filter(describe_acls.Request, **fields), note)

    def settle(self, note: str) -> None:
        """Wait until the broker has applied the controller's earlier decisions."""
        if not note:
            return
        mark = {"name": "mark", "principal": "User:mark"}
        for is_there in (True, False):
            if is_there:
                self.create("", _acl("mark", principal="User:mark"))
            else:
                self.delete("", mark)
            while bool(self.describe("", **mark).resources) != is_there:
                pass


class AuthorizedScenes(AclScenes):
    """Sends requests as a user who may do everything that no ACL denies."""

    def all(self) -> None:
        self.topics()
        self.operations("no ACL")
        anonymous = {"principal": "User:ANONYMOUS"}
        self.create("", _acl("*", operation=DESCRIBE, **anonymous))
        self.create("", _acl("t", pattern=PREFIXED, operation=WRITE, permission=DENY, **anonymous))
        self.settle("a denial")
        self.operations("a denial")
        self.create("", _acl("tall", operation=READ, **anonymous))
        self.create("", _acl("*", operation=ALTER, **anonymous))
        self.settle("permissions")
        self.operations("permissions and a denial")
        self.create("", _acl("other", operation=ALL, host="127.0.0.1", **anonymous))
        self.create("", _acl("tiny", operation=11, principal="User:*"))
        self.settle("more permissions")
        self.operations("more permissions")
        self.create("", _acl("kafka-cluster", CLUSTER, operation=ALL, **anonymous))
        self.create("", _acl("kafka-cluster", CLUSTER, operation=CREATE, permission=DENY, **anonymous))
        self.settle("of the cluster")
        self.operations("not all of the cluster")
        self.create("", _acl("kafka-cluster", CLUSTER, operation=DESCRIBE, permission=DENY, **anonymous))
        asked = describe_cluster.Request(include_cluster_authorized_operations=True)
        while self.ask("DescribeCluster", 2, asked).cluster_authorized_operations:
            pass
        self.operations("the cluster not described")

    def topics(self) -> None:
        wanted = [create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in TOPICS]
        self.ask("CreateTopics", 7, create_topics.Request(topics=wanted, timeout_ms=30_000))
        rpc = metadata
        named = [rpc.MetadataRequestTopic(name=name) for name in TOPICS]
        request = rpc.Request(topics=named, allow_auto_topic_creation=False)
        while any(each.error_code for each in self.ask("Metadata", 12, request).topics):
            pass

    def operations(self, note: str) -> None:
        """Request the operations that the caller may perform on topics and on the cluster."""
        rpc, pages = metadata, describe_topic_partitions
        for version in (8, 13):
            request = rpc.Request(
                topics=[rpc.MetadataRequestTopic(name=name) for name in TOPICS],
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=True,
                include_cluster_authorized_operations=version == 8,
            )
            self.ask("Metadata", version, request, f"{note}: operations")
        page = pages.Request(topics=[pages.TopicRequest(name=name) for name in TOPICS], response_partition_limit=10)
        self.ask("DescribeTopicPartitions", 0, page, f"{note}: operations")
        wanted = describe_cluster.Request(include_cluster_authorized_operations=True)
        self.ask("DescribeCluster", 2, wanted, f"{note}: operations")


TOPICS = ("tall", "tiny", "other")
