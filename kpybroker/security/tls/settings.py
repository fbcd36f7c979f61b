"""Parses the TLS settings of one listener (`listener.name.<listener>.ssl.*`, else `ssl.*`), or of a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

from kpybroker.config import BrokerConfig
from kpybroker.config.component import read_settings, setting
from kpybroker.config.effect import LISTENER_PREFIX
from kpybroker.config.key import ConfigKey, Value
from kpybroker.config.security_keys import SECURITY_KEYS


@dataclass(frozen=True, repr=False)
class TlsSettings:
    """The parsed settings. They contain passwords and keys, and are never shown."""

    keystore_type: str = setting("ssl.keystore.type")
    keystore_location: str | None = setting("ssl.keystore.location")
    keystore_password: str | None = setting("ssl.keystore.password")
    keystore_key: str | None = setting("ssl.keystore.key")
    keystore_chain: str | None = setting("ssl.keystore.certificate.chain")
    key_password: str | None = setting("ssl.key.password")
    truststore_type: str = setting("ssl.truststore.type")
    truststore_location: str | None = setting("ssl.truststore.location")
    truststore_password: str | None = setting("ssl.truststore.password")
    truststore_certificates: str | None = setting("ssl.truststore.certificates")
    client_auth: str = setting("ssl.client.auth")
    host_names: str = setting("ssl.endpoint.identification.algorithm")
    enabled_protocols: tuple[str, ...] = setting("ssl.enabled.protocols")
    cipher_suites: tuple[str, ...] = setting("ssl.cipher.suites")
    principal_rules: str = setting("ssl.principal.mapping.rules")

    @property
    def has_keystore(self) -> bool:
        """Whether a key store is set. A node that only connects to other nodes needs one only if they require its
        certificate."""
        found = (self.keystore_location, self.keystore_password, self.keystore_key, self.keystore_chain)
        return any(each is not None for each in found)


def tls_settings(config: BrokerConfig, listener: str) -> TlsSettings:
    """The settings of a listener. Raises ConfigError for a value that is out of range."""

    def of_listener(key: ConfigKey) -> Value:
        name = _prefixed(listener, key.name)
        text = config.dynamic_broker.get(name, config.static.get(name))
        if text is None:
            name, text = key.name, config.static.get(key.name)
        return key.default_value if text is None else key._replace(name=name).parse(text)

    return _settings(of_listener)


def client_tls_settings(properties: Mapping[str, str]) -> TlsSettings:
    """The settings of a client, named as in Apache Kafka's clients. Raises ConfigError for a value that is out of
    range."""

    def of_client(key: ConfigKey) -> Value:
        text = properties.get(key.name)
        return key.default_value if text is None else key.parse(text)

    return _settings(of_client)


def _settings(value_of: Callable[[ConfigKey], Value]) -> TlsSettings:
    found = {key.attribute: value_of(key) for key in SECURITY_KEYS if key.name.startswith("ssl.")}
    return read_settings(TlsSettings, cast(BrokerConfig, SimpleNamespace(**found)))


def is_prefixed(config: BrokerConfig, listener: str, name: str) -> bool:
    """Whether a setting is set for this listener only."""
    return _prefixed(listener, name) in config.static


def _prefixed(listener: str, name: str) -> str:
    return f"{LISTENER_PREFIX}{listener.lower()}.{name}"
