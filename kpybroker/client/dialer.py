"""Opens connections to a listener, with TLS and a login if the listener needs them.

The modules of TLS and of logins are imported only for such listeners, because most brokers start without them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from secrets import token_bytes

from kpybroker.client.peer import Peer
from kpybroker.config import BrokerConfig
from kpybroker.config.client_properties import check_client_properties, has_tls
from kpybroker.config.login import Login, login_of
from kpybroker.errors import KafkaError
from kpybroker.world import Network, World
from kpybroker.world.secure import HANDSHAKE_ERRORS, TlsContext, why_not_dialled

log = logging.getLogger(__name__)

TOLD_MAX = 1000


class HandshakeFailed(ConnectionError):
    """The TLS handshake failed; the text has the cause and the remedy."""


class Dialer:
    """Connects to listeners of one kind."""

    def __init__(
        self,
        network: Network,
        login: Login | None = None,
        tls: Callable[[], TlsContext] | None = None,
        secret_bytes: Callable[[int], bytes] = token_bytes,
        *,
        is_logged: bool = True,
    ) -> None:
        """`tls` is called at each connection and returns a context; it is None for listeners without TLS.

        `is_logged`: also log failed handshakes, for callers that keep retrying. `secret_bytes`: the method of a World.
        """
        self._network = network
        self._login = login
        self._tls = tls
        self._is_logged = is_logged
        self._secret_bytes = secret_bytes
        self._told: dict[tuple[str, int], str] = {}
        """The last logged reason of a failed handshake, by address."""

    async def dial(self, host: str, port: int, *, client_id: str) -> Peer:
        """A new connection without negotiated versions. Logs in if the listener requires it.

        Raises OSError, HandshakeFailed, or ConnectionError if the login is refused.
        """
        context = None if self._tls is None else self._tls()
        try:
            peer = await Peer.dial(self._network, host, port, client_id=client_id, tls=context)
        except HANDSHAKE_ERRORS as error:
            if context is None:
                raise
            why = why_not_dialled(error)
            self._tell((host, port), why)
            raise HandshakeFailed(why) from error
        self._told.pop((host, port), None)
        if self._login is not None:
            from kpybroker.client.login import log_in

            await log_in(peer, self._login, self._secret_bytes)
        return peer

    def _tell(self, address: tuple[str, int], why: str) -> None:
        """Log each cause only once, because callers keep retrying."""
        if self._is_logged and self._told.get(address) != why:
            if len(self._told) >= TOLD_MAX:
                self._told.clear()
            self._told[address] = why
            log.warning("cannot connect to %s:%d with TLS: %s", *address, why)

    async def meet(self, host: str, port: int, *, client_id: str) -> Peer:
        """A new connection with negotiated versions. A failure or cancellation closes it.

        Raises OSError, ConnectionError if the broker refuses ApiVersions, MalformedFrame.
        """
        peer = await self.dial(host, port, client_id=client_id)
        ready = False
        try:
            await peer.negotiate()
            ready = True
        except KafkaError as refusal:
            raise ConnectionError(str(refusal)) from refusal
        finally:
            if not ready:
                peer.close()
        return peer


def broker_dialer(world: World, config: Callable[[], BrokerConfig]) -> Dialer:
    """A dialer for the listeners through which brokers connect to each other (inter.broker.listener.name). Raises
    ConfigError if the stores cannot be used."""
    now = config()
    return Dialer(world.network, now.login_to_brokers, _context(world, config, now.tls_to_brokers), world.secret_bytes)


def controller_dialer(world: World, config: BrokerConfig) -> Dialer:
    """A dialer for the controllers' listeners (controller.listener.names). Raises ConfigError if the stores cannot be
    used."""
    tls = _context(world, lambda: config, config.tls_to_controllers)
    return Dialer(world.network, config.login_to_controllers, tls, world.secret_bytes)


def client_dialer(world: World, properties: Mapping[str, str]) -> Dialer:
    """A dialer for a client with these settings, named as in Apache Kafka's clients (`config/client_properties.py`).
    Raises ConfigError."""
    check_client_properties(properties)
    if not has_tls(properties):
        return Dialer(world.network, login_of(properties))
    from kpybroker.security.tls.contexts import dialing_context
    from kpybroker.security.tls.settings import client_tls_settings

    context = dialing_context(client_tls_settings(properties), world.wall_ms(), "client")
    return Dialer(world.network, login_of(properties), lambda: context, is_logged=False)


def _context(world: World, config: Callable[[], BrokerConfig], listener: str | None) -> Callable[[], TlsContext] | None:
    if listener is None:
        return None
    from kpybroker.security.tls.contexts import node_context

    return node_context(config, listener, world.wall_ms, world.steady_ms).current
