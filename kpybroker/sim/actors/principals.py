"""Logins on all listeners, and ACLs: sessions are renewed during faults, and no client is served without the rights.

All other clients also log in, as users with the rights that they need. `cluster/secured.py` sets up the cluster of a
seed with this actor.
"""

from __future__ import annotations

from functools import partial
from itertools import cycle
from random import Random

from kpybroker.config.login import Login
from kpybroker.errors import KafkaError
from kpybroker.security.acls import WILDCARD, WILDCARD_PRINCIPAL, Acl, PatternType, Permission
from kpybroker.security.authorizer import CLUSTER_NAME, AclResource, Operation
from kpybroker.security.sasl.plain import PLAIN
from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.clients.client import SimClient, Unanswered
from kpybroker.sim.clients.doors import Doors
from kpybroker.sim.clients.intruder import Intruder
from kpybroker.sim.clients.logins import Bearer, Identity, Known, TokenHolder
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.security_admin import acls_of, add_acls, scram_of, set_scram
from kpybroker.sim.clients.topic_admin import create_topic
from kpybroker.sim.clients.warden import Warden
from kpybroker.sim.cluster.secured import (
    ADMIN,
    ANN,
    BOB,
    CAY,
    DAN,
    EVE,
    NODE,
    OPERATOR,
    SCRAM_USERS,
    USERS,
    between_brokers,
    password_of,
    secured,
)
from kpybroker.sim.cluster.setup import Setup, TopicSetup
from kpybroker.sim.laws.admission import Admission
from kpybroker.topics import TopicPartition

GUARDED: TopicPartition = ("guarded", 0)
VAULT = "vault"
"""The topic that only super users may describe."""
SUPER = frozenset({"founder", "auditor", "second auditor", "warden"})
"""Clients that log in as the admin."""
TIMELESS = frozenset({"abandoner"})
"""Clients that must be able to log in while clocks are far wrong, so that tokens expire too early or too late."""
WORKERS = frozenset("pcmkstxwbn")
"""The prefixes of the names of numbered clients that only write and read."""
TOKENS_MS = (6000, 60_000)


class Principals(Actor):
    """Runs the warden and the intruder. `laws/admission.py` has the invariants."""

    name = "principals"
    odds = 0.25
    checks = "users, ACLs, and that all users get in"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._admission = Admission(run.history)
        self._warden: Warden | None = None

    @classmethod
    def draw(cls, setup: Setup, random: Random) -> Setup:
        return secured(setup, random)

    def foundations(self, founder: SimClient) -> list[Preparation]:
        users = [(user, mechanism) for name, mechanism in SCRAM_USERS.items() for user in (name, name + OPERATOR)]
        mechanism = between_brokers(self.run.setup)
        if mechanism != PLAIN:
            users.insert(0, (NODE, mechanism))
        return [
            *((user, partial(set_scram, founder, user, way, password_of(user))) for user, way in users),
            ("ACLs", partial(add_acls, founder, _acls())),
        ]

    def preparations(self, founder: SimClient) -> list[Preparation]:
        topics = (TopicSetup(VAULT, 1, 1, {}), TopicSetup(GUARDED[0], 1, self.run.setup.replicas, {}))
        return [(topic.name, partial(create_topic, founder, topic)) for topic in topics]

    def identify(self, client: SimClient) -> None:
        """Give a client its identity, and the topics that it must never be shown."""
        client.log_in_as(_identity(client, self.run.setup.seed), frozenset() if client.name in SUPER else HIDDEN)

    def start(self) -> None:
        run = self.run
        machines = {machine.setup.node_id: machine for machine in run.machines}
        client = run.client("warden")
        self._warden = Warden(client, Doors(client, machines), self._admission, GUARDED)
        run.start(client, self._warden)
        client = run.client("intruder")
        run.start(client, Intruder(client, Doors(client, machines), self._admission))

    async def check(self, auditor: SimClient) -> None:
        warden, history = self._warden, self.run.history
        if warden is None:
            return
        node_id = auditor.any_broker()
        for guest, is_there in warden.scram.items():
            found = await scram_of(auditor, node_id, guest)
            if bool(found) != is_there:
                history.breach(
                    f"{guest} {'has lost its credential' if is_there else 'was removed, and is still there'}"
                )
        for guest, acls in warden.acls.items():
            if await acls_of(auditor, node_id, f"User:{guest}") != acls:
                history.breach(f"the ACLs of {guest} are not those that were set")
        machines = {machine.setup.node_id: machine for machine in self.run.machines}
        doors = Doors(auditor, machines)
        for user, each in zip(USERS, cycle(machines), strict=False):
            await self._gets_in(auditor, doors, each, user)

    async def _gets_in(self, auditor: SimClient, doors: Doors, node_id: int, user: str) -> None:
        """Check that a user can log in and is shown the right topics. Raises Unanswered, Refused."""
        login: Login = await _login_of(user, auditor, node_id)
        found = await doors.attempt(node_id, login)
        if found.peer is None:
            raise Unanswered(f"{user} does not get in at node {node_id}: {found.refusal}")
        try:
            shown = await doors.topics(found.peer)
        except KafkaError as refusal:
            raise Unanswered(str(refusal)) from refusal
        finally:
            found.peer.close()
        if VAULT in shown:
            self.run.history.breach(f"{user} was shown {VAULT}, which it may not describe")
        if GUARDED[0] not in shown:
            raise Unanswered(f"{user} is not shown {GUARDED[0]} by node {node_id}")


HIDDEN = frozenset({VAULT})


def _identity(client: SimClient, seed: int) -> Identity:
    """The identity of a client. It is drawn from a separate Random, so that the client's other draws are the same as
    without a login."""
    random = Random(f"{seed} login {client.name}")
    if client.name in SUPER:
        return Known(ADMIN, PLAIN, password_of(ADMIN))
    is_worker = client.name[0] in WORKERS and client.name[1:].isdigit()
    users = (ANN, BOB, CAY) if client.name in TIMELESS else (ANN, BOB, CAY, DAN, EVE)
    user = random.choice(users) + ("" if is_worker else OPERATOR)
    return _identity_of(user, random)


def _identity_of(user: str, random: Random) -> Identity:
    name = user.removesuffix(OPERATOR)
    if name in SCRAM_USERS:
        return Known(user, SCRAM_USERS[name], password_of(user))
    if name == DAN:
        mechanism = random.choice(tuple(SCRAM_USERS.values()))
        return TokenHolder(user, password_of(user), mechanism, random.choice(TOKENS_MS))
    if name == EVE:
        return Bearer(user, random.choice(TOKENS_MS))
    return Known(user, PLAIN, password_of(user))


async def _login_of(user: str, auditor: SimClient, node_id: int) -> Login:
    try:
        return await _identity_of(user, Random(user)).login(auditor, node_id)
    except OSError as error:
        raise Unanswered(str(error)) from error


def _acls() -> list[Acl]:
    """The ACLs of all users. Only super users have rights for the topic VAULT."""
    read, write, delete = Operation.READ, Operation.WRITE, Operation.DELETE
    to_work = (
        (AclResource.TOPIC, (read, write)),
        (AclResource.GROUP, (read, delete)),
        (AclResource.TRANSACTIONAL_ID, (write,)),
    )
    to_operate = tuple(
        (resource, (Operation.ALL,))
        for resource in (AclResource.TOPIC, AclResource.GROUP, AclResource.TRANSACTIONAL_ID, AclResource.CLUSTER)
    )
    found = [_acl(AclResource.TOPIC, VAULT, WILDCARD_PRINCIPAL, Operation.ALL, Permission.DENY)]
    for user in USERS:
        for resource, operations in to_operate if user.endswith(OPERATOR) else to_work:
            name = CLUSTER_NAME if resource is AclResource.CLUSTER else WILDCARD
            found += [_acl(resource, name, f"User:{user}", each, Permission.ALLOW) for each in operations]
    return found


def _acl(resource: AclResource, name: str, principal: str, operation: Operation, permission: Permission) -> Acl:
    return Acl(resource, name, PatternType.LITERAL, principal, WILDCARD, operation, permission)
