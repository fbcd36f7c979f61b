"""A broker with TLS, logins and ACLs, and a `Cluster` object for each of its users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from compat_tests.changing import until
from compat_tests.conftest import EXIT_CODES, Running
from kpybroker.spark import Cluster
from oracle.broker import KPyBroker
from oracle.kafka import Kafka
from oracle.target import steady_port
from tests.certificates import sign

MECHANISM = "SCRAM-SHA-512"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,NAMED:SASL_SSL",
    "inter.broker.listener.name": "PLAINTEXT",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "ssl.keystore.type": "PEM",
    "sasl.enabled.mechanisms": MECHANISM,
    f"listener.name.named.{MECHANISM.lower()}.sasl.jaas.config": f"{MODULE} required;",
}
TOPIC, GROUP, TRANSACTIONAL_ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
Right = tuple[ResourceType, str, AclOperation]
"""A resource type, the prefix of a name or `*`, and the allowed operation."""
PATTERNS = (ResourcePatternType.PREFIXED, ResourcePatternType.LITERAL)
PATIENCE_S = 30


class SecuredBroker:
    """A broker with a secured listener. On its other listener, which `bootstrap` names, clients are super users."""

    def __init__(self, broker: Running, port: int, directory: Path) -> None:
        self.broker = broker
        self.port = port
        self.authority = directory / "ca.pem"
        self._directory = directory
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def user(self, name: str, *rights: Right) -> Cluster:
        """The cluster for a new user, whose password is `of NAME`."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = UserScramCredentialUpsertion(name, info, password_of(name).encode())
        self.admin.alter_user_scram_credentials([made])[name].result(PATIENCE_S)
        self.allow(name, *rights)
        until(lambda: name in self.admin.describe_user_scram_credentials().result(PATIENCE_S), "the user is known")
        return self.seen_by(name)

    def allow(self, name: str, *rights: Right) -> None:
        acls = [
            AclBinding(kind, on, PATTERNS[on == "*"], f"User:{name}", "*", may, AclPermissionType.ALLOW)
            for kind, on, may in rights
        ]
        for made in (self.admin.create_acls(acls) if acls else {}).values():
            made.result(PATIENCE_S)

    def seen_by(self, name: str, **changes: str | None) -> Cluster:
        """The cluster with the properties of a user; `changes` replaces some of them, or removes them if None."""
        settings = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{MODULE} required username="{name}" password="{password_of(name)}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            **{each.replace("_", "."): text for each, text in changes.items()},
        }
        number = len(list(self._directory.iterdir()))
        file = self._directory / f"{name}-{number}.properties"
        file.write_text("".join(f"{each}={text}\n" for each, text in settings.items() if text is not None))
        return Cluster(f"localhost:{self.port}", file)


def password_of(name: str) -> str:
    return f"of-{name}-only"


@contextmanager
def secured_broker(target_name: str, directory: Path) -> Iterator[SecuredBroker]:
    """A running broker of the target."""
    broker: Running = Kafka(jvm=("-XX:TieredStopAtLevel=1",)) if target_name == "kafka" else KPyBroker()
    authority, port = sign("authority"), steady_port()
    (directory / "ca.pem").write_text(authority.chain_pem)
    shown = f"PLAINTEXT://127.0.0.1:{broker.port},NAMED://localhost:{port}"
    controller = f",CONTROLLER://127.0.0.1:{broker.controller_port}" if isinstance(broker, Kafka) else ""
    broker.properties |= {
        **SETTINGS,
        "listeners": shown + controller,
        "advertised.listeners": shown,
        "ssl.keystore.location": str(sign("localhost", authority).pem(directory / "server.pem")),
    }
    broker.start()
    try:
        yield SecuredBroker(broker, port, directory)
    finally:
        assert broker.stop() == EXIT_CODES[target_name]
        broker.remove()
