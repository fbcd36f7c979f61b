"""Reads the listeners of a node, and the login and TLS with which it connects to other nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kpybroker.config.listeners import (
    TLS_PROTOCOLS,
    check_advertised,
    check_controller_protocols,
    check_listening,
    listener_for_brokers,
    parse_listeners,
    parse_protocol_map,
)
from kpybroker.config.sasl_settings import login_to_brokers, login_to_controllers, sasl_listeners
from kpybroker.errors import ConfigError


def read_endpoints(values: dict[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """The endpoint fields of BrokerConfig, by name. `values` has the parsed settings, `texts` those that were given.
    Raises ConfigError."""
    controller_names = tuple(name.upper() for name in values["controller_listener_names"])
    protocols = parse_protocol_map(
        values["listener_security_protocol_map"],
        controller_names,
        values["listeners"],
        "listener.security.protocol.map" in texts,
    )
    if "controller" not in values["process_roles"]:
        check_controller_protocols(controller_names, protocols)
    every = parse_listeners("listeners", values["listeners"], protocols)
    check_listening(every)
    listeners = tuple(endpoint for endpoint in every if endpoint.name not in controller_names)
    controllers = tuple(endpoint for endpoint in every if endpoint.name in controller_names)
    if "broker" in values["process_roles"]:
        check_listening(listeners)
    elif listeners:
        raise ConfigError(
            f"listeners: {listeners[0].name} is for clients, but process.roles lacks broker; name listeners of "
            f"controller.listener.names only, e.g. {controller_names[0]}://:9093"
        )
    with_logins = sasl_listeners(texts, every)
    between = values["inter_broker_listener_name"] or values["security_inter_broker_protocol"]
    for_brokers = listener_for_brokers(listeners, between)
    named = parse_listeners("advertised.listeners", values["advertised_listeners"] or (), protocols)
    check_advertised(named, every)
    advertised = {endpoint.name: endpoint for endpoint in named}
    return {
        "listeners": listeners,
        "controller_listeners": controllers,
        "advertised_listeners": tuple(advertised.get(endpoint.name, endpoint) for endpoint in listeners),
        "advertised_controller_listeners": tuple(advertised.get(endpoint.name, endpoint) for endpoint in controllers),
        "inter_broker_listener_name": between,
        "sasl_listeners": with_logins,
        "login_to_brokers": login_to_brokers(texts, for_brokers, with_logins),
        "login_to_controllers": login_to_controllers(texts, controller_names, protocols),
        "tls_to_brokers": for_brokers.name if for_brokers and for_brokers.protocol in TLS_PROTOCOLS else None,
        "tls_to_controllers": _tls_to_controllers(controller_names, protocols),
    }


def _tls_to_controllers(names: Sequence[str], protocols: Mapping[str, str]) -> str | None:
    """The first listener of controller.listener.names, if it uses TLS."""
    return names[0] if names and protocols.get(names[0]) in TLS_PROTOCOLS else None
