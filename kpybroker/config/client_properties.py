"""The settings of a client, from a properties file as Apache Kafka's tools read it with `--command-config`.

`security.protocol`, `sasl.*` and `ssl.*` take effect. Other settings are those of producers and consumers, and are
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.listeners import PROTOCOLS, TLS_PROTOCOLS
from kpybroker.config.properties import did_you_mean
from kpybroker.config.security_keys import SECURITY_KEYS
from kpybroker.errors import ConfigError

PROTOCOL = "security.protocol"
KNOWN = {key.name for key in SECURITY_KEYS} | {PROTOCOL, "sasl.mechanism"}
OF_SECURITY = ("security.", "sasl.", "ssl.")


def check_client_properties(properties: Mapping[str, str]) -> None:
    """Raises ConfigError for an unknown security protocol, and for an unknown name that resembles a security setting,
    because the connection would be less secure than intended if it were ignored."""
    protocol = protocol_of(properties)
    if protocol not in PROTOCOLS:
        raise ConfigError(f"{PROTOCOL}={protocol}: name one of {', '.join(PROTOCOLS)}")
    for name in properties:
        if name.startswith(OF_SECURITY) and name not in KNOWN:
            raise ConfigError(f"unknown setting {name}{did_you_mean(name, KNOWN)}")


def protocol_of(properties: Mapping[str, str]) -> str:
    """`security.protocol`, PLAINTEXT by default."""
    return properties.get(PROTOCOL, PROTOCOLS[0]).strip().upper()


def has_tls(properties: Mapping[str, str]) -> bool:
    """Whether the client uses TLS."""
    return protocol_of(properties) in TLS_PROTOCOLS
