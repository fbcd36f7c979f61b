"""Runs kpybroker and Apache Kafka in turn on one directory with TLS, logins, ACLs, tokens and quotas, and tests that
logins and permissions stay the same."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.changing import until
from kpybroker.client.login import LoginFailed
from kpybroker.config.login import Login
from kpybroker.errors import ErrorCode
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.wire.records.batch import Record, encode_batch
from kpybroker.wire.rpc import (
    alter_client_quotas,
    create_delegation_token,
    describe_acls,
    describe_client_quotas,
    describe_delegation_token,
    describe_user_scram_credentials,
    metadata,
    produce,
)
from oracle.administration import DENY, PREFIXED, Acl, create, remove_password, set_password
from oracle.asking import Conversation, Door
from oracle.cluster import Cluster
from oracle.secured import Secured
from oracle.takeover import ALIKE, KAFKA, KPYBROKER, QUICK_JVM
from oracle.tools import tool

EXIT_CODES = {KPYBROKER: 0, KAFKA: 143}
OPEN, CLOSED = "open-topic", "closed-topic"
RATE, LARGE_BYTES = 1000.0, 12_000
"""The quota of slow users, and a request size that it delays by about a second."""
MECHANISM = "SCRAM-SHA-256"
SETTINGS = {
    **ALIKE,
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "delegation.token.secret.key": "a secret of all nodes",
    "connections.max.reauth.ms": "60000",
}
ANY = 1
TIMEOUT_S = 30.0
NOT_ALLOWED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Person(NamedTuple):
    """A user with a token. `is_slow`: the user has a quota."""

    name: str
    password: str
    token_id: str
    secret: str
    is_slow: bool


class House:
    """The node, which is of one kind at a time, and all users, which were created on nodes of both kinds."""

    def __init__(self, directory: Path) -> None:
        self.secured = Secured(directory / "certificates", {})
        self.cluster = Cluster(
            KPYBROKER, brokers=1, directory=directory, properties=SETTINGS, secured=self.secured, jvm=QUICK_JVM
        )
        self.people: list[Person] = []
        self.removed: list[Person] = []
        self.measured: set[str] = set()
        """Users whose rate was measured since the node started: another measurement would throttle them for a long
        time."""
        self.root_file = self.secured.java("root")

    def start(self, kind: str) -> None:
        self.cluster.become(kind)
        self.cluster.start()
        self.measured.clear()

    def stop(self) -> None:
        assert self.cluster.stop() == [EXIT_CODES[self.cluster.kind]]

    @contextlib.contextmanager
    def talk(self, login: Login | None = None) -> Iterator[Conversation]:
        """A connection (`Conversation`) as this user, or as a super user. Raises LoginFailed."""
        door = self.secured.door() if login is None else Door(self.secured.context, login)
        with contextlib.closing(Conversation(self.cluster.brokers[0].address, TIMEOUT_S, door)) as node:
            yield node

    def tool(self, name: str, *args: str, settings: Path | None = None) -> str:
        config = ("--command-config", str(settings or self.root_file))
        return tool(name, *args, *config, bootstrap=self.cluster.bootstrap).ok()

    # ---- changes

    def create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, **self.secured.librdkafka()})
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in (OPEN, CLOSED)]).values():
            made.result(TIMEOUT_S)

    def welcome(self, name: str, *, is_slow: bool) -> None:
        """Create a user with a password, rights and a token; if `is_slow`, also with a quota."""
        acls = [
            Acl(name, Operation.WRITE, AclResource.TOPIC, "o", PREFIXED),
            Acl(name, Operation.ALL, AclResource.TOPIC, "*"),
            Acl(name, Operation.ALL, AclResource.TOPIC, CLOSED, permission=DENY),
        ]
        with self.talk() as root:
            set_password(root, name, f"of-{name}", 8192)
            create(root, acls)
            if is_slow:
                self._limit(root, name)
        until(lambda: self._is_in(Login(MECHANISM, name, f"of-{name}")), f"{name} logs in")
        with self.talk(Login(MECHANISM, name, f"of-{name}")) as node:
            request = create_delegation_token.Request(max_lifetime_ms=-1, owner_principal_name=None)
            request.owner_principal_type = None
            told = node.ask("CreateDelegationToken", 3, request, create_delegation_token.Response)
            assert told.error_code == 0
        secret = base64.b64encode(told.hmac).decode()
        self.people.append(Person(name, f"of-{name}", told.token_id, secret, is_slow))

    def _limit(self, root: Conversation, name: str) -> None:
        entity = alter_client_quotas.EntityData(entity_type="user", entity_name=name)
        op = alter_client_quotas.OpData(key="producer_byte_rate", value=RATE)
        request = alter_client_quotas.Request(entries=[alter_client_quotas.EntryData(entity=[entity], ops=[op])])
        told = root.ask("AlterClientQuotas", 1, request, alter_client_quotas.Response)
        assert [row.error_code for row in told.entries] == [0]

    def dismiss(self, person: Person) -> None:
        """Remove the user's password."""
        with self.talk() as root:
            remove_password(root, person.name)
        self.people.remove(person)
        self.removed.append(person)

    # ---- visible state

    def lists(self) -> dict[str, Any]:
        """The node's descriptions of ACLs, credentials, tokens and quotas."""
        acls = describe_acls.Request(
            resource_type_filter=ANY,
            resource_name_filter=None,
            pattern_type_filter=ANY,
            principal_filter=None,
            host_filter=None,
            operation=ANY,
            permission_type=ANY,
        )
        quotas = describe_client_quotas.Request(components=[], strict=False)
        with self.talk() as root:
            users = describe_user_scram_credentials.Request(users=None)
            tokens = describe_delegation_token.Request(owners=None)
            found = {
                "acls": root.ask("DescribeAcls", 3, acls, describe_acls.Response).resources,
                "users": root.ask(
                    "DescribeUserScramCredentials", 0, users, describe_user_scram_credentials.Response
                ).results,
                "tokens": root.ask("DescribeDelegationToken", 3, tokens, describe_delegation_token.Response).tokens,
                "quotas": root.ask("DescribeClientQuotas", 1, quotas, describe_client_quotas.Response).entries,
            }
        return {name: sorted(_flat(row) for row in rows) for name, rows in found.items()}

    def _is_in(self, login: Login) -> bool:
        try:
            with self.talk(login):
                return True
        except LoginFailed:
            return False

    def check(self, tmp_path: Path) -> None:
        """Every user logs in with a password and with a token; permissions and refusals are as before."""
        for person in self.people:
            by_password = Login(MECHANISM, person.name, person.password)
            by_token = Login(MECHANISM, person.token_id, person.secret, by_token=True)
            for login in (by_password, by_token):
                with self.talk(login) as node:
                    if person.name not in self.measured:
                        assert self._write(node, OPEN, LARGE_BYTES) == (0, person.is_slow)
                        self.measured.add(person.name)
                    assert self._write(node, OPEN)[0] == 0
                    assert self._write(node, CLOSED)[0] == NOT_ALLOWED
                    request = metadata.Request(topics=None)
                    assert [row.name for row in node.ask("Metadata", 12, request, metadata.Response).topics] == [OPEN]
                assert not self._is_in(login._replace(password="wrong"))
            self._check_librdkafka(person)
            file = tmp_path / f"{person.token_id}.properties"
            file.write_text(_java(self.secured.trusted, by_token))
            assert self.tool("kafka-topics", "--list", settings=file).split() == [OPEN]
        for person in self.removed:
            assert not self._is_in(Login(MECHANISM, person.name, person.password))
            assert self._is_in(Login(MECHANISM, person.token_id, person.secret, by_token=True))

    def _write(self, node: Conversation, topic: str, size: int = 1) -> tuple[int, bool]:
        """Write as the user. Returns the error code, and whether the user is throttled."""
        batch = bytes(encode_batch([Record(0, 0, None, b"x" * size, ())]))
        data = produce.TopicProduceData(
            name=topic, partition_data=[produce.PartitionProduceData(index=0, records=batch)]
        )
        request = produce.Request(acks=-1, timeout_ms=9000, topic_data=[data])
        told = node.ask("Produce", 9, request, produce.Response)
        return told.responses[0].partition_responses[0].error_code, told.throttle_time_ms > 0

    def _check_librdkafka(self, person: Person) -> None:
        settings = self.secured.librdkafka() | {
            "bootstrap.servers": self.cluster.bootstrap,
            "sasl.mechanism": MECHANISM,
            "sasl.username": person.name,
            "sasl.password": person.password,
        }
        producer = Producer(settings)
        codes: dict[str, int] = {}
        for topic in (OPEN, CLOSED):
            with contextlib.suppress(KafkaException):
                producer.produce(
                    topic, b"x", on_delivery=lambda error, _, at=topic: codes.update({at: error.code() if error else 0})
                )
        assert producer.flush(TIMEOUT_S) == 0
        assert codes == {OPEN: 0, CLOSED: KafkaError.TOPIC_AUTHORIZATION_FAILED}


def _flat(row: Any) -> str:
    """A row as text, independent of the order of lists."""
    if isinstance(row, list | tuple):
        return str(sorted(map(_flat, row)))
    if hasattr(row, "__slots__") and not isinstance(row, str | bytes | int | float):
        return str({name: _flat(getattr(row, name)) for name in row.__slots__})
    return str(row)


def _java(trusted: Path, token: Login) -> str:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trusted),
        "sasl.mechanism": token.mechanism,
        "sasl.jaas.config": f'{module} required username="{token.user}" password="{token.password}" tokenauth="true";',
    }
    return "".join(f"{name}={text}\n" for name, text in settings.items())


@pytest.mark.full
@pytest.mark.parametrize("first", [KPYBROKER, KAFKA])
def test_who_may_do_what_stays_the_same(first: str, tmp_path: Path) -> None:
    second = KAFKA if first == KPYBROKER else KPYBROKER
    house = House(tmp_path)
    try:
        house.start(first)
        house.create_topics()
        before: dict[str, Any] = {}
        for turn, kind in enumerate((first, second, first)):
            if turn:
                house.start(kind)
                until(lambda now=before: house.lists() == now, "everything is listed as before")
            house.check(tmp_path)
            for is_slow in (True, False):
                house.welcome(f"{'slow' if is_slow else 'quick'}-{turn}", is_slow=is_slow)
            if turn == 1:
                house.dismiss(house.people[1])
            house.check(tmp_path)
            before = house.lists()
            house.stop()
    finally:
        house.cluster.kill9()
