"""Connections to listeners with SASL: frames are passed to a login session until the login is complete.

See KIP-43 and KIP-368. This works over any transport. The response to a failed login is delayed, and so is the close of
its connection. A login with a token may have to wait for a thread. In the meantime nothing is read from the connection,
which has one timer or task. The connection limits bound the number of timers and tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from kpybroker.broker.broker import Broker
from kpybroker.call import Reply
from kpybroker.config.jaas import OAUTHBEARER
from kpybroker.config.sasl_settings import SaslListener
from kpybroker.errors import MalformedFrame
from kpybroker.handlers import refused
from kpybroker.security.sasl.bearer_tokens import TokenCheck
from kpybroker.security.sasl.exchange import Exchange, Mechanism, Preparation
from kpybroker.security.sasl.oauthbearer import OAuthBearerExchange
from kpybroker.security.sasl.plain import PLAIN, PlainExchange
from kpybroker.security.sasl.scram import MECHANISMS, ScramExchange, new_nonce
from kpybroker.security.sasl.session import LoginSession, Stage, Verdict
from kpybroker.security.sasl.token_logins import TokenLogins
from kpybroker.security.scram import ScramCredential, ScramMechanism
from kpybroker.server.connections.activity import Activity
from kpybroker.server.connections.bad_frames import HEADER_BYTES_MIN
from kpybroker.server.connections.connection import TURN_MS, Connection
from kpybroker.server.connections.listener import ListenerState
from kpybroker.server.connections.port import Port
from kpybroker.tasks import begin

LOGIN_S = 60.0
"""The time within which a client must log in. Apache Kafka allows connections.max.idle.ms after each request
instead."""
SECRET_BYTES = 32


class ListenerLogin:
    """The data that all logins to one listener share: mechanisms, limits, the check of OAUTHBEARER tokens, delegation
    tokens, and the secret from which salts for unknown users are derived."""

    def __init__(self, broker: Broker, settings: SaslListener, check: TokenCheck | None) -> None:
        self._broker = broker
        self.receive_bytes_max = settings.receive_bytes_max
        self.failure_delay_s = broker.config.connection_failed_authentication_delay_ms / 1000
        self._secret = broker.world.secret_bytes(SECRET_BYTES)
        self.fail = broker.background.fail
        self._tokens = self._token_logins()
        self._check = check
        self._mechanisms: Mapping[str, Mechanism] = {
            name: Mechanism(self._beginning(name, settings.users), settings.lifetimes_ms[name])
            for name in settings.mechanisms
        }

    def session(self) -> LoginSession:
        """The login session of a new connection."""
        return LoginSession(self._mechanisms, refused, self._broker.world.steady_ms)

    def _beginning(self, name: str, users: Mapping[str, str]) -> Callable[[], Exchange]:
        if name == OAUTHBEARER:
            assert self._check is not None, "a listener with OAUTHBEARER has a token check before it is opened"
            return partial(OAuthBearerExchange, self._check)
        return partial(PlainExchange, users) if name == PLAIN else partial(self._scram, MECHANISMS[name])

    def _scram(self, mechanism: ScramMechanism) -> ScramExchange:
        broker = self._broker

        def credential(user: str) -> ScramCredential | None:
            return broker.metadata.image.scram_credentials.get(user, {}).get(mechanism)

        return ScramExchange(mechanism, credential, new_nonce(broker.world.secret_bytes), self._secret, self._tokens)

    def _token_logins(self) -> TokenLogins | None:
        broker = self._broker
        key = broker.config.delegation_tokens.secret_key
        if key is None:
            return None
        world, metadata = broker.world, broker.metadata
        return TokenLogins(
            key, lambda: metadata.image.delegation_tokens, self._secret, world.wall_ms, world.disk.off_loop
        )


class Delay(Reply):
    """A placeholder in the queue of replies for a delayed login response. No frame is handled until it is complete."""

    __slots__ = ("_work",)

    def __init__(self) -> None:
        super().__init__(holds_frame=True)
        self._work: asyncio.TimerHandle | asyncio.Task[None] | None = None

    def start(self, work: asyncio.TimerHandle | asyncio.Task[None]) -> None:
        """Set the timer or task that completes the login. It is cancelled if the connection is lost."""
        self._work = work

    def abandon(self) -> None:
        if self._work is not None:
            self._work.cancel()


class LoginConnection(Connection):
    """A connection on which the client has to log in."""

    __slots__ = ("_login", "_session", "_waits_since")

    def __init__(self, port: Port, listener: ListenerState, login: ListenerLogin) -> None:
        super().__init__(port, listener)
        self._login = login
        self._session = login.session()
        self._waits_since = port.now
        """The time since which the login has been waiting for the client, by the event loop's clock."""

    def look(self, now: float) -> Activity:
        if self.blocker is not None or not self.listener.is_open:  # the client is waiting for this broker
            self._waits_since = now
        elif not self._session.has_logged_in and now - self._waits_since > LOGIN_S:
            self.drop(f"its client has not logged in within {LOGIN_S:.0f} s")
        return super().look(now)

    def _run_frames(self, until_ms: int) -> None:
        session = self._session
        until_ms = until_ms or self._port.steady_ms() + TURN_MS
        while not session.is_settled:
            if session.stage is Stage.FAILED:
                return
            is_in = session.stage is Stage.COMPLETE
            least_bytes = 0 if session.takes_bare_tokens else HEADER_BYTES_MIN
            most_bytes = self._port.frame_limit_bytes if is_in else self._login.receive_bytes_max
            frame = self.next_frame(least_bytes, most_bytes)
            if frame is None:
                return
            try:
                self._take(frame)
            except MalformedFrame as malformed:
                self.refuse_frame(str(malformed))
                return
            if self._port.steady_ms() >= until_ms:
                return
        super()._run_frames(until_ms)

    def stop_gracefully(self) -> None:
        if isinstance(self.blocker, Delay):
            self.abort()
        else:
            super().stop_gracefully()

    def _take(self, frame: memoryview, *, prepared: bool = False) -> None:
        """Handle one frame. Raises MalformedFrame."""
        session = self._session
        verdict = session.take(frame, prepared=prepared)
        if verdict.preparation is not None:
            delay = Delay()
            work = self._take_prepared(bytes(frame), verdict.preparation, delay)
            delay.start(begin(work, "a login by a token", self._login.fail))
            self.await_reply(delay)
        elif verdict.passes:
            self._port.dispatch(self, frame)
        elif verdict.failure is not None:
            self._fail(verdict.failure, verdict)
        else:
            self.answer(verdict.answer)
            if session.stage is Stage.COMPLETE:
                self.log_in(session.principal)

    async def _take_prepared(self, frame: bytes, preparation: Preparation, delay: Delay) -> None:
        """Handle a frame again once its preparation is complete. Later bytes are not handled until its response is
        queued."""
        await preparation()
        if self.is_closing:
            return
        try:
            self._take(memoryview(frame), prepared=True)
        except MalformedFrame as malformed:
            self.refuse_frame(str(malformed))
        delay.complete(None)

    def _fail(self, why: str, verdict: Verdict) -> None:
        """Log one line, and send the response and close the connection after a delay."""
        port = self._port
        port.metrics.login_failed()
        self.tell_refusal(why)
        port.flush()  # earlier requests of this connection may still be in the buffer
        self._let_memory_go()
        delay = Delay()
        loop = asyncio.get_running_loop()
        delay.start(loop.call_later(self._login.failure_delay_s, self._end, delay, verdict))
        self.await_reply(delay)

    def _end(self, delay: Delay, verdict: Verdict) -> None:
        delay.complete(None)
        if verdict.answer and not self.is_closing:
            self.answer(verdict.answer)
        self.close()
