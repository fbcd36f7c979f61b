"""Settings of one listener that can change while the broker runs: `listener.name.<listener>.<setting>`.

They limit the number (KIP-402) and the rate (KIP-612) of connections to a listener, or set the listener's TLS stores
(KIP-226).
"""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.effect import LISTENER_PREFIX, without_prefix
from kpybroker.config.key import ConfigKey
from kpybroker.config.security_keys import STORE_KEYS
from kpybroker.config.server_keys import SERVER_KEYS

LISTENER_LIMITS: Mapping[str, ConfigKey] = {
    key.name: key for key in SERVER_KEYS if key.name in ("max.connections", "max.connection.creation.rate")
}

LOOPBACK = ("127.0.0.1", "::1")


def is_listener_limit(name: str) -> bool:
    """Whether the setting limits the connections of one listener."""
    return name.startswith(LISTENER_PREFIX) and without_prefix(name) in LISTENER_LIMITS


def is_listener_store(name: str) -> bool:
    """Whether the setting belongs to the TLS stores of one listener."""
    return name.startswith(LISTENER_PREFIX) and without_prefix(name) in STORE_KEYS


def read_listener_limits(settings: Mapping[str, str]) -> dict[str, int]:
    """The listener limits among the settings, by the full names of the settings. Raises ConfigError."""
    found = {}
    for name, text in settings.items():
        if is_listener_limit(name):
            value = LISTENER_LIMITS[without_prefix(name)]._replace(name=name).parse(text)
            assert isinstance(value, int)
            found[name] = value
    return found


def read_host_limits(text: str) -> dict[str, int]:
    """The values of max.connections.per.ip.overrides, by address."""
    found = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        host, _, count = item.rpartition(":")
        for address in LOOPBACK if host.strip() == "localhost" else (host.strip().strip("[]"),):
            found[address] = int(count)
    return found
