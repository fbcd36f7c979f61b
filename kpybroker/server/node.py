"""One node: it opens the data directories, starts the quorum, the broker and the listeners, and stops them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kpybroker.broker.broker import Broker
from kpybroker.call import BROKER, CONTROLLER
from kpybroker.config import BrokerConfig, Endpoint
from kpybroker.config.advertised import with_hosts
from kpybroker.errors import ConfigError, KafkaError
from kpybroker.metadata import chronicle
from kpybroker.server.connections.secure_listeners import SecureListening, secure_listening
from kpybroker.server.server import Server
from kpybroker.storage.dirs.directory import is_formatted
from kpybroker.world import World

if TYPE_CHECKING:
    from kpybroker.server.connections.token_checks import ListenerTokens
    from kpybroker.server.metrics.endpoints import Observing

log = logging.getLogger(__name__)

ANY_HOST = ("", "0.0.0.0", "::")


class Node:
    """A running node. Create it with `Node.start`; `bootstrap` is the address for clients."""

    def __init__(
        self, broker: Broker, server: Server, advertised: tuple[Endpoint, ...], observing: Observing | None = None
    ) -> None:
        self.broker = broker
        self.server = server
        self.advertised = advertised
        self.failed: asyncio.Future[str] = broker.background.failed
        """Resolved with the reason when the node cannot continue, for example because of a bug in the controller, or
        because all log directories are offline."""
        self._observing = observing

    @classmethod
    async def start(cls, world: World, config: BrokerConfig, *, records_requests: bool = False) -> Node:
        """Open or format the directories, recover the logs, listen, register with the controller, and serve clients.

        `records_requests`: keep the last requests of clients, for tests.

        Raises ConfigError with the cause and the remedy, for example if a port is in use, or a directory is in use, not
        writable or belongs to another node.
        """
        chronicle.tell_start(config.static)
        config = with_hosts(config, world.network.host_name)
        observing = await _observe(world, config)
        node = None
        try:
            node = await cls._start(world, config, observing, records_requests=records_requests)
            return node
        finally:
            if node is None and observing is not None:
                observing.close()

    @classmethod
    async def _start(
        cls, world: World, config: BrokerConfig, observing: Observing | None, *, records_requests: bool
    ) -> Node:
        secure_listening(lambda: config, world)  # raises ConfigError before a directory is formatted
        tokens = await _listener_tokens(world, config)
        if not is_formatted(world, config.metadata_log_dir):
            await _check_ports(world, config)
        broker = await Broker.open(world, config)
        server = Server(broker, tokens)
        if records_requests:
            server.recorder.remember()
        if observing is not None:
            observing.show(broker, server)
        started = False
        try:
            secure = secure_listening(lambda: broker.config, world)
            for endpoint in config.controller_listeners:
                await _listen(server, endpoint, CONTROLLER, secure.get(endpoint.name))
            listening = [await _listen(server, each, BROKER, secure.get(each.name)) for each in config.listeners]
            await broker.enter_quorum()
            advertised = tuple(
                _advertise(wanted, port) for wanted, port in zip(config.advertised_listeners, listening, strict=True)
            )
            if advertised:
                await broker.join(advertised)
            started = True
        except KafkaError as refusal:
            raise ConfigError(f"the controller refuses this broker: {refusal}") from refusal
        finally:
            if not started:
                await server.stop()
                await broker.close()
        server.begin_serving()
        if observing is not None:
            observing.serving()
        return cls(broker, server, advertised, observing)

    @property
    def bootstrap(self) -> str:
        """The host and port of the first listener for clients or, if the node has none, of its controller listener."""
        first = (self.advertised or self.broker.config.controller_listeners)[0]
        host = f"[{first.host}]" if ":" in first.host else first.host
        return f"{host}:{first.port}"

    @property
    def http(self) -> str | None:
        """The address of /metrics, /healthz and /readyz; None if kpybroker.http.port is not set."""
        return None if self._observing is None else self._observing.address

    async def break_off(self) -> None:
        """End without a clean stop: close all connections at once, and release files and locks. The World decides
        whether this still changes the disk."""
        self.server.break_off()
        await self.broker.close()
        if self._observing is not None:
            self._observing.close()

    async def stop(self) -> None:
        """Complete waiting requests, write all appended data, and leave the marker of a clean shutdown."""
        await self.broker.leave()
        await self.broker.quorum.resign()
        await self.server.stop()
        await self.broker.close()
        if self._observing is not None:
            self._observing.close()


async def _observe(world: World, config: BrokerConfig) -> Observing | None:
    """Serve probes from now on. Raises ConfigError."""
    if config.http_port is None:
        return None
    from kpybroker.server.metrics.endpoints import Observing

    observing = Observing(world)
    started = False
    try:
        await observing.start(config)
        started = True
    finally:
        if not started:
            observing.close()
    return observing


async def _listener_tokens(world: World, config: BrokerConfig) -> dict[str, ListenerTokens]:
    """The token checks of OAUTHBEARER listeners. Their modules are imported only if there is such a listener.
    Raises ConfigError."""
    if all(each.tokens is None for each in config.sasl_listeners.values()):
        return {}
    from kpybroker.server.connections.token_checks import listener_tokens

    return await listener_tokens(world, config)


async def _check_ports(world: World, config: BrokerConfig) -> None:
    """Check that the ports are free. Called before a new directory is formatted, so that a failed start leaves no
    directory behind. Raises ConfigError."""
    for endpoint in (*config.controller_listeners, *config.listeners):
        try:
            listener = await world.network.listen(asyncio.Protocol, endpoint.host, endpoint.port)
        except OSError as error:
            raise _cannot_listen(endpoint, error) from error
        listener.close()


async def _listen(server: Server, endpoint: Endpoint, side: str, secure: SecureListening | None = None) -> int:
    try:
        return await server.start(endpoint.host, endpoint.port, endpoint.name, side, secure)
    except OSError as error:
        raise _cannot_listen(endpoint, error) from error


def _cannot_listen(endpoint: Endpoint, error: OSError) -> ConfigError:
    where = f"{endpoint.host or '*'}:{endpoint.port}"
    return ConfigError(f"cannot listen on {where}: {error.strerror or error}; choose another port, or 0 for a free one")


def _advertise(wanted: Endpoint, port: int) -> Endpoint:
    """The advertised address of a listener. If no host is set, the host is 127.0.0.1 rather than a name. If no port is
    set, the port is the one on which the listener listens."""
    host = wanted.host
    if host in ANY_HOST:
        host = "127.0.0.1"
        log.warning(
            "listener %s is advertised as %s; for clients elsewhere set advertised.listeners", wanted.name, host
        )
    return Endpoint(wanted.name, host, wanted.port or port, wanted.protocol)
