"""Chooses the host of advertised listeners that have none, neither in `advertised.listeners` nor in `listeners`.

As in Apache Kafka, it is the canonical name of this machine. Only a node that is a cluster by itself advertises
127.0.0.1, because on a laptop the name of the machine often cannot be resolved.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Sequence
from functools import cache

from kpybroker.config.listeners import ANY_ADDRESS, Endpoint
from kpybroker.config.quorum import ControllerServer, InitialController, StaticVoter

LOOPBACK = "127.0.0.1"


def with_hosts(endpoints: Iterable[Endpoint], *, is_alone: bool, own_voter: StaticVoter | None) -> tuple[Endpoint, ...]:
    """The endpoints, each with a host. `own_voter` is this node's entry in controller.quorum.voters, whose host is used
    for the endpoint with its port."""

    def host_of(endpoint: Endpoint) -> str:
        if endpoint.host and endpoint.host not in ANY_ADDRESS:
            return endpoint.host
        if own_voter is not None and own_voter.port == endpoint.port:
            return own_voter.host
        return LOOPBACK if is_alone else canonical_host_name()

    return tuple(endpoint._replace(host=host_of(endpoint)) for endpoint in endpoints)


def is_alone(
    roles: Collection[str],
    voters: Sequence[StaticVoter],
    servers: Sequence[ControllerServer],
    initial: Sequence[InitialController] | None,
    controller_listeners: Sequence[Endpoint],
) -> bool:
    """Whether the settings of a node name no other node."""
    if not {"broker", "controller"} <= set(roles) or len(voters) > 1 or (initial is not None and len(initial) != 1):
        return False
    own_ports = {endpoint.port for endpoint in controller_listeners}
    return len(servers) <= 1 and all(server.port in own_ports for server in servers)


@cache
def canonical_host_name() -> str:
    """The name of this machine as its resolver knows it. May wait for the resolver."""
    name = socket.gethostname()
    try:
        return socket.gethostbyaddr(socket.gethostbyname(name))[0]
    except OSError:
        return name
