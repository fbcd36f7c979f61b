"""Chooses the host of advertised listeners that have none, neither in `advertised.listeners` nor in `listeners`.

As in Apache Kafka, it is the canonical name of this machine. Only a node that is a cluster by itself advertises
127.0.0.1, because on a laptop the name of the machine often cannot be resolved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kpybroker.config.broker_config import BrokerConfig
from kpybroker.config.listeners import ANY_ADDRESS, Endpoint

LOOPBACK = "127.0.0.1"


def with_hosts(config: BrokerConfig, host_name: Callable[[], str]) -> BrokerConfig:
    """The settings, with a host for each advertised listener. `host_name` returns the canonical name of this machine.

    A controller in controller.quorum.voters advertises its host there. The listeners for clients of a node that is
    alone keep an empty host.
    """
    alone = is_alone(config)
    own = next((voter for voter in config.controller_quorum_voters if voter.node_id == config.node_id), None)

    def hosted(endpoint: Endpoint, *, votes: bool) -> Endpoint:
        if endpoint.host and endpoint.host not in ANY_ADDRESS:
            return endpoint
        if votes and own is not None and own.port == endpoint.port:
            return endpoint._replace(host=own.host)
        return endpoint._replace(host=LOOPBACK if alone else host_name())

    clients, controllers = config.advertised_listeners, config.advertised_controller_listeners
    return replace(
        config,
        advertised_listeners=clients if alone else tuple(hosted(each, votes=False) for each in clients),
        advertised_controller_listeners=tuple(hosted(each, votes=True) for each in controllers),
    )


def is_alone(config: BrokerConfig) -> bool:
    """Whether the settings name no other node."""
    voters, initial = config.controller_quorum_voters, config.initial_controllers
    if set(config.process_roles) != {"broker", "controller"} or len(voters) > 1:
        return False
    if initial is not None and len(initial) != 1:
        return False
    servers, own_ports = config.controller_quorum_bootstrap_servers, {each.port for each in config.controller_listeners}
    return len(servers) <= 1 and all(server.port in own_ports for server in servers)
