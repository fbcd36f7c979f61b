"""The listeners with TLS of a node: what they accept with, and who their clients are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from kpybroker.config import BrokerConfig, Endpoint
from kpybroker.config.listeners import TLS_PROTOCOLS
from kpybroker.errors import ConfigError
from kpybroker.security.principal import Principal
from kpybroker.security.tls.names import parse_rules, principal_of
from kpybroker.security.tls.settings import tls_settings
from kpybroker.security.tls.stores import check_library, read_identity, read_trust
from kpybroker.security.tls.suites import suites
from kpybroker.world.secure import TlsContext, read_public, read_store, server_context

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SecureListening:
    """A context for handshakes, and the principal of a certificate (DER); None if no mapping rule matches its name."""

    context: TlsContext
    principal_of: Callable[[bytes | None], Principal | None]


def secure_listening(config: BrokerConfig, now_ms: int) -> dict[str, SecureListening]:
    """By name, the listeners with TLS. Raises ConfigError with the listener, the setting and the remedy."""
    found = {}
    for endpoint in config.listeners:
        if endpoint.protocol in TLS_PROTOCOLS:
            try:
                found[endpoint.name] = _listening(config, endpoint, now_ms)
            except ConfigError as error:
                raise ConfigError(f"listener {endpoint.name}: {error}") from None
    return found


def _listening(config: BrokerConfig, endpoint: Endpoint, now_ms: int) -> SecureListening:
    check_library()
    settings = tls_settings(config, endpoint.name)
    rules = parse_rules(settings.principal_rules)
    allowed = suites(settings.enabled_protocols, settings.cipher_suites)
    identity = read_identity(settings, read_store)
    if identity.expires_ms <= now_ms:
        log.warning("listener %s: its certificate has expired; clients that check it refuse it", endpoint.name)
    trusted = read_trust(settings, read_public)
    if settings.client_auth == "required" and not trusted:
        raise ConfigError("ssl.client.auth=required needs the certificates to trust: set ssl.truststore.location")
    try:
        context = server_context(
            identity.key_pem,
            identity.chain_pem,
            trusted,
            settings.client_auth,
            (allowed.lowest, allowed.highest),
            allowed.ciphers,
        )
    except OSError as error:
        raise ConfigError(f"OpenSSL does not take its key, certificates or ciphers: {error}") from None
    return SecureListening(context, lambda certificate: principal_of(certificate, rules))
