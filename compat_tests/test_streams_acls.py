"""Tests of Kafka Streams with a user who has the rights that Apache Kafka's documentation requires, or lacks one of
them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.pipelines import Program
from kpybroker.config.login import Login
from kpybroker.security.authorizer import AclResource, Operation
from oracle.administration import PREFIXED, Acl, create
from oracle.asking import Conversation
from oracle.cluster import Cluster
from oracle.secured import Secured

WORDS = ["the", "wind", "blows", "the", "wind"]
PARTITIONS = 2
ONE_NODE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "connections.max.reauth.ms": "5000",
}
ENDED = (0, 3)
"""Counting's exit codes: Streams ends as NOT_RUNNING or ERROR, whichever comes first."""


def rights(application: str) -> dict[str, Acl]:
    """The rights that the documentation requires (Streams, Security; for exactly once, transactional ids), by name."""
    return {
        "input": Acl(application, Operation.READ, AclResource.TOPIC, source(application)),
        "output": Acl(application, Operation.WRITE, AclResource.TOPIC, sink(application)),
        "group": Acl(application, Operation.READ, AclResource.GROUP, application),
        "transactional id": Acl(application, Operation.WRITE, AclResource.TRANSACTIONAL_ID, application, PREFIXED),
        "read internal": Acl(application, Operation.READ, AclResource.TOPIC, application, PREFIXED),
        "write internal": Acl(application, Operation.WRITE, AclResource.TOPIC, application, PREFIXED),
        "create internal": Acl(application, Operation.CREATE, AclResource.TOPIC, application, PREFIXED),
        "delete internal": Acl(application, Operation.DELETE, AclResource.TOPIC, application, PREFIXED),
    }


FAILURES = {
    "input": "TopicAuthorizationException: Not authorized to access topics: [input-of-",
    "output": "TopicAuthorizationException: Not authorized to access topics: [output-of-",
    "group": "GroupAuthorizationException: Not authorized to access group: ",
    "transactional id": "TransactionalIdAuthorizationException",
    "read internal": "TopicAuthorizationException: Not authorized to access topics: [without-read-internal-",
    "write internal": "TopicAuthorizationException: Not authorized to access topics: [without-write-internal-",
    "create internal": "Could not create topic without-create-internal-",
}
"""By missing right: the application's error before it ends."""


def source(application: str) -> str:
    return f"input-of-{application}"


def sink(application: str) -> str:
    return f"output-of-{application}"


def name_of(missing: str, protocol: str = "classic") -> str:
    without = f"without-{missing.replace(' ', '-')}" if missing else "complete"
    return without if protocol == "classic" else f"{protocol}-{without}"


@pytest.fixture(scope="module")
def cluster(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node. Each application has a separate user."""
    directory = tmp_path_factory.mktemp("secured")
    names = [name_of(missing) for missing in ("", "delete internal", *FAILURES)] + [name_of("", "streams")]
    users = {name: Login("SCRAM-SHA-512", name, f"of-{name}") for name in names}
    secured = Secured(directory / "certificates", users)
    quick = ("-XX:TieredStopAtLevel=1",)
    with Cluster(
        target_name, brokers=1, directory=directory, properties=ONE_NODE, secured=secured, jvm=quick
    ) as cluster:
        yield cluster


def begin(cluster: Cluster, missing: str, tmp_path: Path, protocol: str = "classic") -> Program:
    """Start an application that lacks one right. Its input exists. protocol: Streams' group.protocol."""
    assert cluster.secured is not None
    application = name_of(missing, protocol)
    common = {"bootstrap.servers": cluster.bootstrap, **cluster.secured.librdkafka()}
    topics = [NewTopic(topic, PARTITIONS, 1) for topic in (source(application), sink(application))]
    admin = AdminClient(common)
    for made in admin.create_topics(topics, operation_timeout=30).values():
        made.result(60)
    acls = [acl for name, acl in rights(application).items() if name != missing]
    with contextlib.closing(Conversation(cluster.brokers[0].address, 30.0, cluster.secured.door())) as root:
        create(root, acls)
    producer = Producer(common)
    for word in WORDS:
        producer.produce(source(application), word)
    assert producer.flush(30) == 0
    where = [cluster.bootstrap, application, "one", str(tmp_path / "state")]
    what = ["exactly_once_v2", "keys", source(application), sink(application)]
    settings = cluster.secured.java(application)
    with settings.open("a") as file:
        file.write(f"repartition.purge.interval.ms=100\ngroup.protocol={protocol}\n")
    return Program("Counting", *where, *what, str(settings), log=tmp_path / "log")


@pytest.mark.parametrize(("missing", "protocol"), [("", "classic"), ("", "streams"), ("delete internal", "classic")])
def test_it_counts(cluster: Cluster, tmp_path: Path, missing: str, protocol: str) -> None:
    """Without DELETE, the records of repartition topics are kept; there is no other difference. In a streams group, the
    broker creates the internal topics with the rights of the application's user."""
    assert cluster.secured is not None
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "x", "isolation.level": "read_committed"}
    with begin(cluster, missing, tmp_path, protocol) as counting:
        consumer = Consumer({**settings, **cluster.secured.librdkafka()})
        consumer.assign([TopicPartition(sink(name_of(missing, protocol)), at, 0) for at in range(PARTITIONS)])
        counts: dict[bytes, int] = {}

        def counted() -> bool:
            for message in consumer.consume(10, 0.2):
                assert message.error() is None
                counts[bytes(message.key() or b"")] = int(message.value() or b"0")
            return counts == Counter(word.encode() for word in WORDS)

        counting.until(counted, f"counted; {counts}")
        consumer.close()
        counting.stop()


@pytest.mark.parametrize("missing", FAILURES)
def test_without_one_of_its_rights_it_ends(cluster: Cluster, tmp_path: Path, missing: str) -> None:
    with begin(cluster, missing, tmp_path) as counting:
        assert counting.await_end() in ENDED
        said = counting.log.read_text()
        assert FAILURES[missing] in said, said[-6000:]
