"""Refuses a change of broker settings that would lock out a broker, or the client that requests it. Apache Kafka
accepts such a change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address

from kpybroker.config import BrokerConfig
from kpybroker.config.dynamic import CONNECTIONS_MIN
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError

PER_IP = ("max.connections.per.ip", "max.connections.per.ip.overrides")


def check_doors(
    state: ControllerState, config: BrokerConfig, name: str, wanted: Mapping[str, str], host: str | None
) -> None:
    """Check the new settings of a broker, or of all brokers for the name "". Raises INVALID_REQUEST.

    `config` includes the cluster's current settings; `host` is the address of the client.
    """
    current = state.config(ResourceType.BROKER, name)
    new = {key: value for key, value in wanted.items() if current.get(key) != value}
    if not new:
        return
    after = config.with_dynamic(wanted, {}) if not name else config.with_dynamic(config.dynamic_default, wanted)
    for reason in _shut_out(state, after, new, host):
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)


def _shut_out(state: ControllerState, after: BrokerConfig, new: Mapping[str, str], host: str | None) -> Iterator[str]:
    if not any(key in new for key in PER_IP):
        return
    hosts = {
        endpoint.host: f"broker {node_id}"
        for node_id, broker in state.brokers.items()
        for endpoint in broker.endpoints
        if _is_address(endpoint.host)
    }
    if host:
        hosts[host] = "the address of this client"
    for each, whose in hosts.items():
        count = after.connections_from(each)
        if count < CONNECTIONS_MIN:
            changed = " and ".join(key for key in PER_IP if key in new)
            yield (
                f"{changed} would leave {count} connections to {each} ({whose}), but at least "
                f"{CONNECTIONS_MIN} are needed; set a limit for this address in {PER_IP[1]}"
            )


def _is_address(host: str) -> bool:
    """Whether the text is an address: a decision on metadata does not resolve host names."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
