"""Limits the number of connections of a broker, of each listener and from each address.

The settings are max.connections, max.connections.per.ip and related ones. Clients must not prevent the nodes of the
cluster from connecting. As in Apache Kafka, the limit of the broker does not apply to a listener that only brokers use,
and connections to controller listeners are counted separately. If nodes and clients use the same listener, a connection
above a limit stays open on probation for a moment. It is kept if one of its requests shows that it belongs to a node.
Connections of nodes are not counted.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from typing import Protocol

from kpybroker.call import BROKER, CONTROLLER
from kpybroker.config import BrokerConfig
from kpybroker.server.connections.listener import ListenerState

PROBATION_S = 2.0
ON_PROBATION_MAX = 16
"""The maximum number of connections on probation on each side of the node. A further one replaces the oldest."""
NODES_MAX = 32
"""The maximum number of uncounted connections of other nodes on each side. Further ones count like those of clients."""
CLOSED_A_SWEEP = 1000
"""How many connections are closed at a time when max.connections is lowered below their number."""
PLAINTEXT = "PLAINTEXT"


class Limited(Protocol):
    """The part of a connection that is used here."""

    number: int
    host: str
    listener: ListenerState
    on_probation: bool
    is_of_a_node: bool

    @property
    def quiet_since(self) -> float:
        """The time since which nothing has been received, by the event loop's clock."""

    def note_probation(self, *, began: bool) -> None:
        """Begin or end the probation of this connection."""

    def note_node(self) -> None:
        """Store that this connection belongs to a node of the cluster."""

    def drop(self, why: str) -> None:
        """Close the connection at once, and log the reason."""


class Side:
    """The connections to the listeners of one side of the node, that is, of the broker or of the controller."""

    def __init__(self) -> None:
        self.counted: dict[Limited, None] = {}
        self.nodes: dict[Limited, None] = {}
        self.on_probation: OrderedDict[Limited, float] = OrderedDict()
        """The connections on probation, with the time when it began."""
        self.by_host: Counter[str] = Counter()
        """The number of counted connections by address."""
        self.by_listener: Counter[str] = Counter()

    def count(self, connection: Limited) -> None:
        self.counted[connection] = None
        self.by_host[connection.host] += 1
        self.by_listener[connection.listener.name] += 1

    def discount(self, connection: Limited) -> bool:
        """Remove a connection from the counts. Return whether it was counted."""
        if connection not in self.counted:
            return False
        del self.counted[connection]
        for counts, key in ((self.by_host, connection.host), (self.by_listener, connection.listener.name)):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
        return True


class ConnectionLimits:
    """Admits connections according to the current settings, which `config` returns."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._config = config
        self._sides = {BROKER: Side(), CONTROLLER: Side()}

    def admit(self, connection: Limited, now: float) -> str | None:
        """Count the connection or put it on probation. If it may not stay, return the name of the limit that has been
        reached, otherwise None."""
        side = self._sides[connection.listener.side]
        reached = self._reached(connection.host, connection.listener, side)
        if reached is None:
            side.count(connection)
            if self.is_for_brokers_alone(connection.listener) and len(side.counted) > self._config().max_connections:
                self._close_oldest(side, 1)
            return None
        if not self._nodes_come_to(connection.listener):
            return reached
        if len(side.on_probation) >= ON_PROBATION_MAX:
            next(iter(side.on_probation)).drop(f"{reached} reached, and newer connections may be brokers")
        side.on_probation[connection] = now
        connection.note_probation(began=True)
        return None

    def early(self, host: str, listener: ListenerState) -> str | None:
        """Called before the TLS handshake. Return the name of the limit that a connection would exceed. Return None if
        there is none, or if the connection may belong to a node and has to be accepted first."""
        return None if self._nodes_come_to(listener) else self._reached(host, listener, self._sides[listener.side])

    def is_a_node(self, connection: Limited) -> None:
        """End the probation of a connection that has sent a request which only nodes of the cluster send."""
        if connection.is_of_a_node:
            return
        side = self._sides[connection.listener.side]
        connection.note_node()
        if len(side.nodes) < NODES_MAX:
            side.discount(connection)
            side.nodes[connection] = None
            self._end_probation(connection, side)
        elif connection.on_probation:
            self._count_or_drop(connection, side, f"{NODES_MAX} connections of other nodes are open")

    def is_a_client(self, connection: Limited) -> None:
        """End the probation of a connection that has sent a client's request."""
        if connection.listener.side != CONTROLLER:  # nodes send such requests to controller listeners, too
            self._count_or_drop(connection, self._sides[BROKER], "it is not a connection of another broker")

    def forget(self, connection: Limited) -> None:
        """Remove a connection that has been closed."""
        side = self._sides[connection.listener.side]
        if not side.discount(connection):
            side.nodes.pop(connection, None)
            self._end_probation(connection, side)

    def look(self, now: float) -> None:
        """Close connections that were on probation for too long, and apply lowered limits. Called once a second."""
        for side in self._sides.values():
            for connection in [each for each, since in side.on_probation.items() if now - since >= PROBATION_S]:
                self._count_or_drop(connection, side, f"it has sent no request of a node within {PROBATION_S:.0f} s")
            excess = len(side.counted) - self._config().max_connections
            if excess > 0:
                self._close_oldest(side, min(excess, CLOSED_A_SWEEP))

    def is_for_brokers_alone(self, listener: ListenerState) -> bool:
        """Whether only brokers use this listener, because it is the inter-broker listener and there are others."""
        config = self._config()
        if listener.side == CONTROLLER or len(config.listeners) < 2:
            return False
        return listener.name == (config.inter_broker_listener_name or PLAINTEXT)

    def is_for_nodes_alone(self, listener: ListenerState) -> bool:
        """Whether only nodes use this listener, because it is a controller listener or only brokers use it."""
        return listener.side == CONTROLLER or self.is_for_brokers_alone(listener)

    def _nodes_come_to(self, listener: ListenerState) -> bool:
        config = self._config()
        if listener.side == CONTROLLER or len(config.listeners) < 2:
            return True
        return listener.name == (config.inter_broker_listener_name or PLAINTEXT)

    def _reached(self, host: str, listener: ListenerState, side: Side) -> str | None:
        config = self._config()
        if side.by_host[host] >= config.connections_from(host):
            return "max.connections.per.ip"
        if not self.is_for_brokers_alone(listener) and len(side.counted) >= config.max_connections:
            return "max.connections"
        if side.by_listener[listener.name] >= config.connections_of(listener.name):
            return f"max.connections of listener {listener.name}"
        return None

    def _count_or_drop(self, connection: Limited, side: Side, why: str) -> None:
        reached = self._reached(connection.host, connection.listener, side)
        if reached is not None:
            connection.drop(f"{reached} reached, and {why}")
            return
        self._end_probation(connection, side)
        side.count(connection)

    def _end_probation(self, connection: Limited, side: Side) -> None:
        side.on_probation.pop(connection, None)
        connection.note_probation(began=False)

    def _close_oldest(self, side: Side, count: int) -> None:
        """Close the connections to listeners for clients that have been idle for the longest time."""
        closable: Collection[Limited] = [each for each in side.counted if not self.is_for_brokers_alone(each.listener)]
        for connection in sorted(closable, key=lambda each: (each.quiet_since, each.number))[:count]:
            connection.drop("max.connections reached; this connection was idle for the longest time")
