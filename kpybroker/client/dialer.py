"""How a node or a command connects to a listener."""

from __future__ import annotations

from kpybroker.client.login import log_in
from kpybroker.client.peer import Peer
from kpybroker.config import BrokerConfig
from kpybroker.config.login import Login
from kpybroker.errors import KafkaError
from kpybroker.world import Network


class Dialer:
    """Connects to listeners of one kind."""

    def __init__(self, network: Network, login: Login | None = None) -> None:
        self._network = network
        self._login = login

    async def dial(self, host: str, port: int, *, client_id: str) -> Peer:
        """A new connection, logged in if the listener wants that, whose versions are not negotiated yet.

        Raises OSError; ConnectionError if the login is refused.
        """
        peer = await Peer.dial(self._network, host, port, client_id=client_id)
        if self._login is not None:
            await log_in(peer, self._login)
        return peer

    async def meet(self, host: str, port: int, *, client_id: str) -> Peer:
        """A new connection with its versions. A failure or cancellation closes it.

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


def broker_dialer(network: Network, config: BrokerConfig) -> Dialer:
    """For the listeners that brokers use among themselves (inter.broker.listener.name)."""
    return Dialer(network, config.login_to_brokers)


def controller_dialer(network: Network, config: BrokerConfig) -> Dialer:
    """For the controllers' listeners (controller.listener.names)."""
    return Dialer(network, config.login_to_controllers)
