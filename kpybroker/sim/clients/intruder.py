"""A client that tries to log in without credentials, to use an expired session, and to become another user."""

from __future__ import annotations

import asyncio

from kpybroker.config.login import Login
from kpybroker.security.sasl.plain import PLAIN
from kpybroker.security.sasl.scram import MECHANISMS
from kpybroker.sim.clients.client import REQUEST_LIMIT_S, SimClient, Unanswered
from kpybroker.sim.clients.doors import Attempt, Doors
from kpybroker.sim.clients.logins import bearer
from kpybroker.sim.cluster.secured import ADMIN, ANN, BOB, NODE
from kpybroker.sim.laws.admission import Admission, Shown
from kpybroker.wire.rpc import metadata

PACE_S = 1.5
LONG_MS, SHORT_MS = 3_600_000, 2000
"""The lifetimes of tokens. The longer one exceeds the length of each session; the shorter one limits it."""
STRANGER = "stranger"
"""A user that logs in only with tokens, and has no rights."""
BESIDE_MS = 5
"""Tolerance for clocks, which are read in whole milliseconds."""


class Intruder:
    """Makes one attempt after another."""

    def __init__(self, client: SimClient, doors: Doors, admission: Admission) -> None:
        self._client = client
        self._doors = doors
        self._law = admission

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            play = client.random.choice((self._guess, self._outstay, self._outstay, self._change, self._ask_at_once))
            try:
                await play(client.any_broker())
                client.succeeded()
                await client.nap(PACE_S)
            except Unanswered as failed:
                client.note(f"receives no response: {failed}")
                await client.nap(0.5)

    async def _guess(self, node_id: int) -> None:
        """Try to log in with credentials that no user ever had. Raises Unanswered."""
        random = self._client.random
        mechanism = random.choice(sorted(MECHANISMS))
        expired = bearer(STRANGER, self._doors.wall_ms(node_id) - 60_000)
        login, why = random.choice(
            (
                (Login(PLAIN, random.choice((ANN, ADMIN, NODE)), "wrong"), "the password is wrong"),
                (Login(PLAIN, STRANGER, "of stranger"), "there is no such user"),
                (Login(mechanism, BOB, "wrong"), "the password is wrong"),
                (Login(mechanism, STRANGER, "of stranger"), "there is no such user"),
                (Login(mechanism, "no token", "bm8gc2VjcmV0", by_token=True), "there is no such token"),
                (expired, "the token had expired a minute before"),
            )
        )
        before_ms = self._doors.wall_ms(node_id)
        found = await self._doors.attempt(node_id, login)
        is_judged = login is not expired or self._doors.wall_ms(node_id) >= before_ms
        self._close(found)
        what = f"{login.user} with {login.mechanism} at node {node_id}"
        self._law.never(what, was_served=found.peer is not None and is_judged, why=why)

    async def _enter(self, node_id: int, user: str, valid_ms: int) -> Attempt:
        """Log in with a token. Raises Unanswered, also if the clock of the node is so far ahead that the token has
        expired."""
        found = await self._doors.attempt(node_id, bearer(user, self._client.wall_ms() + valid_ms))
        if found.peer is None:
            raise Unanswered(f"node {node_id} refuses a token: {found.refusal}")
        return found

    async def _outstay(self, node_id: int) -> None:
        """Send a request after the session has ended. In half of the attempts, the session was renewed once. Raises
        Unanswered."""
        client = self._client
        found = await self._enter(node_id, STRANGER, client.random.choice((SHORT_MS, LONG_MS)))
        assert found.peer is not None
        peer = found.peer
        try:
            if client.random.random() < 0.5:
                await client.idle_until(found.at_s + client.random.random() * found.lifetime_ms / 1000)
                found = await self._renewed(node_id, found)
            ends_s = found.at_s + (found.lifetime_ms + BESIDE_MS) / 1000
            if not await client.idle_until(ends_s + client.random.choice((0.0, 0.2))):
                return
            sent_s, was_served = client.loop.time(), True
            try:
                async with asyncio.timeout(REQUEST_LIMIT_S):
                    await peer.ask("Metadata", metadata.Request(topics=None))
            except OSError:
                was_served = False
            self._law.session(f"{STRANGER} at node {node_id}", sent_s=sent_s, ended_s=ends_s, was_served=was_served)
        finally:
            peer.close()

    async def _renewed(self, node_id: int, found: Attempt) -> Attempt:
        """Log in again before the session ends, which a broker must allow. Raises Unanswered."""
        assert found.peer is not None
        shown = Shown(self._doors.process(node_id))
        again = await self._doors.again(found.peer, bearer(STRANGER, self._client.wall_ms() + LONG_MS))
        if again.refusal is not None:
            what, process = f"{STRANGER} at node {node_id}", self._doors.process(node_id)
            self._law.kept_out(what, shown=shown, process=process, why=again.refusal)
            raise Unanswered(again.refusal)
        self._client.history.count("logins renewed")
        return again

    async def _change(self, node_id: int) -> None:
        """Try to renew a session as another principal. Raises Unanswered."""
        found = await self._enter(node_id, STRANGER, LONG_MS)
        assert found.peer is not None
        other = await self._doors.again(found.peer, bearer(ANN, self._client.wall_ms() + LONG_MS))
        found.peer.close()
        self._law.same_principal(STRANGER, ANN, was_let_in=other.peer is not None)

    async def _ask_at_once(self, node_id: int) -> None:
        """Send a request before any login. Raises Unanswered."""
        was_served = True
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                peer = await self._client.dial(node_id)
        except OSError as error:
            raise Unanswered(str(error) or "timeout") from error
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                await peer.negotiate()
                await peer.ask("Metadata", metadata.Request(topics=None))
        except OSError:
            was_served = False
        finally:
            peer.close()
        self._law.never("Metadata", was_served=was_served, why="nobody has logged in on the connection")

    def _close(self, found: Attempt) -> None:
        if found.peer is not None:
            found.peer.close()
