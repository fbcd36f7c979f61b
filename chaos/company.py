"""The users and ACLs of a secured run, and the faults that such a run adds: rights and passwords that change, clients
without credentials, and certificates that are renewed while nodes run."""

from __future__ import annotations

import contextlib
import itertools
import time
from pathlib import Path

from chaos.changes import Changes
from chaos.history import History
from chaos.hostile import TIMEOUT_S, Hostile
from chaos.nemesis import Nemesis, Trouble
from chaos.strangers import Guessers, HalfHandshakes, PlainText, Unauthenticated
from chaos.trials import ALLOWED, DENIED, GUEST, NOBODY, SPARE, Trials
from kpybroker.config.login import Login
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.wire.rpc import incremental_alter_configs
from oracle.administration import DENY, LITERAL, PREFIXED, Acl, create, delete, remove_password, set_password
from oracle.asking import Conversation, Door
from oracle.cluster import Cluster, ClusterNode
from oracle.secured import NODE, ROOT, Secured
from oracle.takeover import KAFKA

WRITER, READER, JAVA, OBSERVER, HOSTILE = "writer", "reader", "java", "observer", "hostile"
USERS = {
    WRITER: "SCRAM-SHA-512",
    READER: "SCRAM-SHA-256",
    JAVA: "SCRAM-SHA-512",
    OBSERVER: "PLAIN",
    HOSTILE: "PLAIN",
    SPARE: "PLAIN",
}
LIFETIME_MS = 4000
"""How long a login is valid: connections.max.reauth.ms."""
FOR_S = (0.5, 2.0, 6.0)
BROKER = 4
"""The resource type of a broker's settings."""


def secured(directory: Path) -> Secured:
    """Create the users of a run. directory: where the certificates are written."""
    users = {name: Login(mechanism, name, f"of-{name}") for name, mechanism in USERS.items()}
    return Secured(directory, users, LIFETIME_MS)


def rights(topic: str, probe: str, groups: dict[str, str]) -> list[Acl]:
    """The ACLs that the clients need, and no others. groups: the user of each group."""
    of = {
        WRITER: [(Operation.WRITE, topic), (Operation.WRITE, probe)],
        READER: [(Operation.READ, topic)],
        JAVA: [(Operation.WRITE, topic), (Operation.READ, topic)],
        OBSERVER: [(Operation.DESCRIBE, topic)],
        HOSTILE: [(Operation.READ, topic)],
        SPARE: [(Operation.WRITE, SPARE)],
    }
    found = [Acl(user, operation, AclResource.TOPIC, name) for user, rows in of.items() for operation, name in rows]
    found += [Acl(user, Operation.READ, AclResource.GROUP, group) for group, user in groups.items()]
    return found + [Acl(OBSERVER, Operation.DESCRIBE, AclResource.GROUP, group) for group in groups]


class Company:
    """Makes the changes and injects the faults of a secured run, from `start` to `finish`."""

    def __init__(self, cluster: Cluster, secured: Secured, history: History, nemesis: Nemesis) -> None:
        self._cluster = cluster
        self._secured = secured
        self._history = history
        self._nemesis = nemesis
        self._passwords = itertools.count(1)
        self.changes = Changes(history, cluster, secured)
        history.rights.change(0.0, ALLOWED)
        history.passwords.change(0.0, GUEST)
        nemesis.add_mild(
            [
                (2, self._deny),
                (2, self._change_password),
                (1, self._add_acls),
                (2, self._renew),
                (2, self._half_handshakes),
                (1, self._plain_text),
                (2, self._flood_without_login),
                (2, self._guess),
            ]
        )

    def start(self, acls: list[Acl], seed: int) -> None:
        """Start; the topic SPARE must exist. Returns after a first change of each kind, so that every run has changes
        of all kinds."""
        self.changes.prepare(acls, [GUEST])
        self.changes.start()
        self._trials = Trials(self._history, self._cluster, self._secured, seed)
        self._tell_denial([Acl(SPARE, Operation.ALL, AclResource.TOPIC, SPARE, permission=DENY)], 1.0)
        self._tell_password(1.0)
        while not self.changes.is_idle:
            time.sleep(0.1)

    def finish(self) -> None:
        self._trials.finish()
        self.changes.finish()

    def shows_new_certificates(self) -> bool:
        """Whether every node presents its newest certificate to new connections."""
        for node in self._cluster.nodes.values():
            try:
                shown = self._secured.shown(node.address, TIMEOUT_S)
            except OSError:
                return False
            if shown != self._secured.certificates[node.node_id]:
                self._say_that_it_is_renewed(node)
                return False
        return True

    # ---- rights and passwords

    def _deny(self) -> Trouble | None:
        if not self.changes.is_idle:
            return None
        kind, name, pattern = self._nemesis.random.choice(
            [
                (Operation.ALL, SPARE, LITERAL),
                (Operation.WRITE, "*", LITERAL),
                (Operation.ALL, SPARE[:3], PREFIXED),
            ]
        )
        both = [Acl(SPARE, each, AclResource.TOPIC, name, pattern, DENY) for each in {kind, Operation.DESCRIBE}]
        return self._denied(both)

    def _denied(self, acls: list[Acl]) -> Trouble:
        """Deny both WRITE and DESCRIBE, because DESCRIBE would still be allowed without WRITE. The change counts from
        the moment when both ACLs exist."""
        self._nemesis.told(f"deny {SPARE}: {acls[0].name}")
        self._nemesis.counted["denials"] += 1
        self._tell_denial(acls, self._nemesis.random.choice(FOR_S))
        yield 0.0

    def _tell_denial(self, acls: list[Acl], for_s: float) -> None:
        self.changes.tell(self._history.rights, DENIED, lambda node: create(node, acls))
        self.changes.hold(for_s)
        self.changes.tell(self._history.rights, ALLOWED, lambda node: delete(node, acls))

    def _change_password(self) -> Trouble | None:
        return self._changed() if self.changes.is_idle else None

    def _changed(self) -> Trouble:
        for _ in range(2):
            self._nemesis.told(f"change the password of {GUEST}")
            self._nemesis.counted["passwords changed"] += 1
            self._tell_password(self._nemesis.random.choice(FOR_S))
        self._nemesis.told(f"{GUEST} then has no password")
        self._nemesis.counted["passwords removed"] += 1
        self.changes.tell(self._history.passwords, NOBODY, lambda node: remove_password(node, GUEST))
        self.changes.hold(self._nemesis.random.choice(FOR_S))
        yield 0.0

    def _tell_password(self, for_s: float) -> None:
        password = f"{GUEST}-{next(self._passwords)}"
        self.changes.tell(self._history.passwords, password, lambda node: set_password(node, GUEST, password))
        self.changes.hold(for_s)

    def _add_acls(self) -> Trouble | None:
        return self._added() if self.changes.is_idle else None

    def _added(self) -> Trouble:
        """Add ACLs of an unrelated user on unrelated resources, which change no other user's rights."""
        count = self._nemesis.random.choice((1, 30, 300))
        acls = [Acl("other", Operation.READ, AclResource.TOPIC, f"other-{number}") for number in range(count)]
        self._nemesis.told(f"add and remove {count} ACLs")
        self._nemesis.counted["ACLs added and removed"] += count
        self.changes.do(lambda node: create(node, acls))
        self.changes.hold(self._nemesis.random.choice(FOR_S))
        self.changes.do(lambda node: delete(node, acls))
        yield 0.0

    # ---- certificates

    def _renew(self) -> Trouble:
        node = self._nemesis.random.choice(list(self._cluster.nodes.values()))
        self._nemesis.told(f"renew the certificate of node {node.node_id}")
        self._nemesis.counted["certificates renewed"] += 1
        self._secured.renew(node.node_id)
        yield 0.0

    def _say_that_it_is_renewed(self, node: ClusterNode) -> None:
        """Apache Kafka reads a store again only when its location is set again (KIP-226)."""
        if node.name != KAFKA:
            return
        prefix = f"listener.name.{self._secured.listener.lower()}.ssl.keystore"
        rows = {f"{prefix}.type": "PEM", f"{prefix}.location": str(self._secured.store(node.node_id))}
        request = incremental_alter_configs.Request(
            resources=[
                incremental_alter_configs.AlterConfigsResource(
                    resource_type=BROKER,
                    resource_name=str(node.node_id),
                    configs=[
                        incremental_alter_configs.AlterableConfig(name=name, config_operation=0, value=text)
                        for name, text in rows.items()
                    ],
                )
            ]
        )
        with contextlib.suppress(OSError):
            asked = Conversation(node.address, 10.0, self._secured.door())
            asked.ask("IncrementalAlterConfigs", 1, request, incremental_alter_configs.Response)
            asked.close()

    # ---- strangers

    def _half_handshakes(self) -> Trouble:
        return self._nemesis.visited("stop in the handshake", HalfHandshakes)

    def _plain_text(self) -> Trouble:
        return self._nemesis.visited("speak plain text", PlainText)

    def _flood_without_login(self) -> Trouble:
        door = Door(self._secured.context, None)
        return self._nemesis.visited(
            "flood without a login",
            lambda address: Unauthenticated(address, lambda at: door.open(at, TIMEOUT_S)),
        )

    def _guess(self) -> Trouble:
        users = [*USERS, NODE.user, ROOT.user, GUEST, "nobody"]

        def come(address: tuple[str, int]) -> Hostile:
            seed = self._nemesis.random.randrange(1 << 32)
            return Guessers(address, self._secured.context, users, seed, self._let_in)

        return self._nemesis.visited("guess passwords", come)

    def _let_in(self, user: str) -> None:
        self._history.incident(f"{user} logged in with a wrong password")
