"""A client that adds and removes SCRAM users, ACLs and tokens, and tests the effect of each change.

Each round has its own guest user, so that a request that arrives late does not disturb other rounds. After a change,
the warden waits until one broker shows the change, and then tests it on that broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kpybroker.client.peer import Peer
from kpybroker.config.login import Login
from kpybroker.errors import ErrorCode
from kpybroker.security.acls import Acl, PatternType, Permission
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.security.sasl.scram import MECHANISMS
from kpybroker.security.scram import ITERATIONS_MIN
from kpybroker.sim.clients.client import REQUEST_LIMIT_S, Refused, SimClient, Unanswered
from kpybroker.sim.clients.doors import DENIED_TOPIC, Doors
from kpybroker.sim.clients.logins import TokenNotGiven, bearer, create_token
from kpybroker.sim.clients.security_admin import (
    acls_of,
    add_acls,
    remove_acl,
    remove_scram,
    remove_token,
    scram_of,
    set_scram,
    tokens_of,
)
from kpybroker.sim.cluster.secured import ADMIN
from kpybroker.sim.laws.admission import Admission, Shown
from kpybroker.topics import TopicPartition

PACE_S = 2.0
LOOKS_MAX = 8
"""The most requests with which the warden checks whether a broker shows a change, before it gives up the round."""
LOOKS_EVERY_S = 0.5
LONG_MS = 3_600_000
"""A lifetime that is far longer than any clock error."""
NOT_ALLOWED = int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
HOST = "*"
PREFIX_LENGTH = 4
_READ_AND_WRITE = (Operation.READ, Operation.WRITE)


def _acl(user: str, topic: str, operation: Operation, permission: Permission, pattern: PatternType) -> Acl:
    return Acl(AclResource.TOPIC, topic, pattern, f"User:{user}", HOST, operation, permission)


class Warden:
    """Runs the rounds. `guarded` is a partition to which only guests write."""

    def __init__(self, client: SimClient, doors: Doors, admission: Admission, guarded: TopicPartition) -> None:
        self._client = client
        self._doors = doors
        self._law = admission
        self._guarded = guarded
        self._number = 0
        self.scram: dict[str, bool] = {}
        """Whether each guest has a SCRAM credential. Only guests whose changes all had responses are included."""
        self.acls: dict[str, set[Acl]] = {}
        """The ACLs of each guest. Only guests whose changes all had responses are included."""

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            guest = f"guest{self._number}"
            self._number += 1
            play = client.random.choice((self._scram, self._acls, self._acls, self._token))
            try:
                await play(guest)
                client.succeeded()
                await client.nap(PACE_S)
            except (Unanswered, Refused) as failed:
                client.note(f"gives up the round of {guest}: {failed}")
                client.forget_topic(self._guarded[0])
                await client.nap(0.5)

    async def _shown(self, node_id: int, look: Callable[[], Awaitable[bool]]) -> Shown:
        """Wait until a node shows a change. Raises Unanswered, Refused."""
        for _ in range(LOOKS_MAX):
            process = self._doors.process(node_id)
            if await look() and self._doors.process(node_id) is process:
                return Shown(process)
            await self._client.nap(LOOKS_EVERY_S)
        raise Unanswered(f"node {node_id} does not know of the change yet")

    # ---- users of SCRAM

    async def _scram(self, guest: str) -> None:
        """Add a user, change the password, remove the user. Raises Unanswered, Refused."""
        client, node_id = self._client, self._client.any_broker()
        mechanism, *others = client.random.sample(sorted(MECHANISMS), len(MECHANISMS))
        last = ""
        for number in range(1, client.random.randint(2, 3)):
            iterations, password = ITERATIONS_MIN + number, f"{guest} {number}"
            await self._set_scram(guest, mechanism, password, iterations)
            shown = await self._shown(node_id, lambda n=iterations: self._has_scram(node_id, guest, mechanism, n))  # type: ignore[misc]
            await self._try(node_id, Login(mechanism, guest, password), shown, valid=True, why="")
            await self._try(
                node_id, Login(mechanism, guest, f"not {password}"), shown, valid=False, why="that is wrong"
            )
            if last:
                why = "the password has been changed"
                await self._try(node_id, Login(mechanism, guest, last), shown, valid=False, why=why)
            last = password
        why = f"it has no credential of {others[0]}"
        await self._try(node_id, Login(others[0], guest, last), shown, valid=False, why=why)
        session = await self._doors.attempt(node_id, Login(mechanism, guest, last))
        await self._remove_scram(guest, mechanism)
        shown = await self._shown(node_id, lambda: self._has_scram(node_id, guest, mechanism, None))
        await self._try(node_id, Login(mechanism, guest, last), shown, valid=False, why="the user was removed")
        if session.peer is not None and session.peer.is_open:
            await self._renewal_fails(node_id, session.peer, Login(mechanism, guest, last), shown)

    async def _set_scram(self, guest: str, mechanism: str, password: str, iterations: int) -> None:
        self.scram.pop(guest, None)
        await set_scram(self._client, guest, mechanism, password, iterations)
        self.scram[guest] = True

    async def _remove_scram(self, guest: str, mechanism: str) -> None:
        self.scram.pop(guest, None)
        await remove_scram(self._client, guest, mechanism)
        self.scram[guest] = False

    async def _has_scram(self, node_id: int, guest: str, mechanism: str, iterations: int | None) -> bool:
        found = await scram_of(self._client, node_id, guest)
        return found.get(MECHANISMS[mechanism]) == iterations

    async def _try(self, node_id: int, login: Login, shown: Shown, *, valid: bool, why: str) -> None:
        found = await self._doors.attempt(node_id, login)
        if found.peer is not None:
            found.peer.close()
        process = self._doors.process(node_id)
        what = f"{login.user} with {login.mechanism} at node {node_id}"
        self._law.login(what, found.refusal, shown=shown, process=process, is_valid=valid, why=why)

    async def _renewal_fails(self, node_id: int, peer: Peer, login: Login, shown: Shown) -> None:
        found = await self._doors.again(peer, login)
        peer.close()
        process = self._doors.process(node_id)
        what = f"the renewal of {login.user} at node {node_id}"
        why = "the credential was removed"
        self._law.login(what, found.refusal, shown=shown, process=process, is_valid=False, why=why)

    # ---- ACLs

    async def _acls(self, guest: str) -> None:
        """Allow operations, and then deny them or stop allowing them. All requests use one connection. Raises
        Unanswered, Refused."""
        client, (topic, index) = self._client, self._guarded
        leader = await client.leader(topic, index)
        node_id, topic_id = leader.node_id, leader.topic_id
        found = await self._doors.attempt(node_id, bearer(guest, client.wall_ms() + LONG_MS))
        if found.peer is None:
            raise Unanswered(f"node {node_id} refuses a token: {found.refusal}")
        try:
            await self._before_any_right(guest, found.peer, topic_id)
            random = client.random
            pattern = random.choice((PatternType.LITERAL, PatternType.PREFIXED))
            name = topic if pattern == PatternType.LITERAL else topic[:PREFIX_LENGTH]
            rights = {each: _acl(guest, name, each, Permission.ALLOW, pattern) for each in _READ_AND_WRITE}
            await self._add(guest, *rights.values())
            await self._judge(guest, node_id, found.peer, topic_id, may=_READ_AND_WRITE)
            less = random.choice(_READ_AND_WRITE)
            if random.random() < 0.5:
                await self._add(
                    guest, _acl(guest, random.choice((topic, "*")), less, Permission.DENY, PatternType.LITERAL)
                )
            else:
                await self._remove(guest, rights[less])
            await self._judge(
                guest, node_id, found.peer, topic_id, may=[each for each in _READ_AND_WRITE if each != less]
            )
            await self._forwarded(guest, found.peer)
        finally:
            found.peer.close()

    async def _before_any_right(self, guest: str, peer: Peer, topic_id: bytes) -> None:
        """Check that a principal without any ACL is served nothing. Raises Unanswered."""
        doors, law, why = self._doors, self._law, "no ACL has ever allowed it"
        law.never(f"a write of {guest}", was_served=await doors.write(peer, self._guarded, topic_id) == 0, why=why)
        law.never(f"a read of {guest}", was_served=await doors.read(peer, self._guarded, topic_id) == 0, why=why)
        law.topics(guest, await doors.topics(peer), set())

    async def _judge(
        self, guest: str, node_id: int, peer: Peer, topic_id: bytes, *, may: list[Operation] | tuple[Operation, ...]
    ) -> None:
        """Try both operations on a node that has the guest's ACLs. Raises Unanswered, Refused."""
        client, doors, law = self._client, self._doors, self._law
        wanted = self.acls.get(guest, set())

        async def knows() -> bool:
            return await acls_of(client, node_id, f"User:{guest}") == wanted

        shown = await self._shown(node_id, knows)
        for operation, ask in ((Operation.WRITE, doors.write), (Operation.READ, doors.read)):
            code = await ask(peer, self._guarded, topic_id)
            law.judged(
                f"{operation.name} of {guest} at node {node_id}",
                shown=shown,
                process=doors.process(node_id),
                is_allowed=operation in may,
                was_denied=code == DENIED_TOPIC,
                ok=code == 0,
            )
        law.topics(guest, await doors.topics(peer), {self._guarded[0]})

    async def _forwarded(self, guest: str, peer: Peer) -> None:
        """Check that the controller authorizes a forwarded request for the guest. Raises Unanswered, Refused."""
        doors, law, name = self._doors, self._law, f"of-{guest}"
        why = "no ACL has ever allowed it"
        law.never(f"CreateTopics of {guest}", was_served=await doors.create_topic(peer, name) == 0, why=why)
        allowed, denied = (
            _acl(guest, name, Operation.CREATE, each, PatternType.LITERAL)
            for each in (Permission.ALLOW, Permission.DENY)
        )
        await self._add(guest, allowed)
        if self._client.random.random() < 0.5:
            if await doors.create_topic(peer, name) == 0:
                self._client.history.count("topics created by guests")
            return
        await self._add(guest, denied)
        why = "the controller has stored the DENY"
        law.never(f"CreateTopics of {guest}", was_served=await doors.create_topic(peer, name) == 0, why=why)

    async def _add(self, guest: str, *acls: Acl) -> None:
        known = self.acls.pop(guest, set())
        await add_acls(self._client, acls)
        self.acls[guest] = known | set(acls)

    async def _remove(self, guest: str, acl: Acl) -> None:
        known = self.acls.pop(guest, set())
        await remove_acl(self._client, acl)
        self.acls[guest] = known - {acl}

    # ---- delegation tokens

    async def _token(self, guest: str) -> None:
        """Create a token, log in with it, and let it expire or remove it. Raises Unanswered, Refused."""
        client, doors, law = self._client, self._doors, self._law
        node_id, mechanism = client.any_broker(), client.random.choice(sorted(MECHANISMS))
        lives_ms = client.random.choice((3000, LONG_MS, LONG_MS))
        try:
            peer = await client.peer(node_id)
            async with asyncio.timeout(REQUEST_LIMIT_S):
                token = await create_token(peer, owner=guest, renewer=ADMIN, lifetime_ms=lives_ms)
        except TokenNotGiven as refused:
            raise Refused(refused.code) from refused
        except OSError as error:
            client.drop(node_id)
            raise Unanswered(str(error) or "timeout") from error
        login = token.login(mechanism)
        why = "that is not the secret of the token"
        shown = await self._shown(node_id, lambda: self._has_token(node_id, guest, token.token_id, there=True))
        await self._try(node_id, login._replace(password="bm8gc2VjcmV0"), shown, valid=False, why=why)
        if lives_ms == LONG_MS:
            await self._set_scram(guest, mechanism, guest, ITERATIONS_MIN)
            password = await self._shown(node_id, lambda: self._has_scram(node_id, guest, mechanism, ITERATIONS_MIN))
            await self._while_valid(node_id, login, Login(mechanism, guest, guest), shown, password)
            await remove_token(client, token)
            shown = await self._shown(node_id, lambda: self._has_token(node_id, guest, token.token_id, there=False))
            await self._try(node_id, login, shown, valid=False, why="the token was removed")
            return
        await client.idle_until(client.loop.time() + 2 * client.random.random() * lives_ms / 1000)
        had_expired = doors.wall_ms(node_id) > token.expires_ms
        found = await doors.attempt(node_id, login)
        if found.peer is not None:
            found.peer.close()
            if had_expired and doors.wall_ms(node_id) > token.expires_ms:
                law.got_in(f"{guest} at node {node_id}", because_not="the token had expired by the clock of that node")

    async def _has_token(self, node_id: int, guest: str, token_id: str, *, there: bool) -> bool:
        return (token_id in await tokens_of(self._client, node_id, guest)) == there

    async def _while_valid(
        self, node_id: int, login: Login, password: Login, shown: Shown, password_shown: Shown
    ) -> None:
        """Check that a client that logs in with a token has the principal of its owner but may not create another token
        until the session is renewed with the password. Raises Unanswered."""
        law, doors, user = self._law, self._doors, password.user
        found = await doors.attempt(node_id, login)
        process = doors.process(node_id)
        what = f"{user} with a token at node {node_id}"
        law.login(what, found.refusal, shown=shown, process=process, is_valid=True, why="")
        if found.peer is None:
            return
        try:
            code = await self._code_of_creation(found.peer)
            law.never(f"CreateDelegationToken of {user}", was_served=code == 0, why="it has logged in with a token")
            renewed = await doors.again(found.peer, password)
            what = f"the renewal of {user} at node {node_id}"
            law.login(what, renewed.refusal, shown=password_shown, process=process, is_valid=True, why="")
            if renewed.peer is not None:
                law.own_rights(user, was_denied=await self._code_of_creation(found.peer) == NOT_ALLOWED)
        finally:
            found.peer.close()

    async def _code_of_creation(self, peer: Peer) -> int:
        """Create a delegation token. Returns the error code of the response. Raises Unanswered."""
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                await create_token(peer)
                return 0
        except TokenNotGiven as refused:
            return refused.code
        except OSError as error:
            peer.close()
            raise Unanswered(str(error) or "timeout") from error
