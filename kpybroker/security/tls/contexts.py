"""Creates the TLS contexts of a listener, and replaces them when the settings or the files change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from kpybroker.config import BrokerConfig, Endpoint
from kpybroker.config.listeners import TLS_PROTOCOLS
from kpybroker.config.sasl_settings import has_login
from kpybroker.errors import ConfigError
from kpybroker.security.tls.settings import TlsSettings, is_prefixed, tls_settings
from kpybroker.security.tls.stores import check_library, read_identity, read_trust
from kpybroker.security.tls.suites import suites
from kpybroker.world.secure import (
    Material,
    TlsContext,
    client_context,
    read_public,
    read_store,
    server_context,
    stamp,
)

log = logging.getLogger(__name__)

LOOKED_EVERY_MS = 1000
"""The shortest interval between two checks of the files of a context that is in use."""


class RenewedContext:
    """A context that is replaced when its settings or the files of its stores change.

    A connection keeps the certificates of its handshake. If the new certificates cannot be used, the previous context
    stays in use, and the reason is logged.
    """

    def __init__(
        self,
        listener: str,
        settings: Callable[[], TlsSettings],
        make: Callable[[TlsSettings], TlsContext],
        steady_ms: Callable[[], int],
        of_file: TlsSettings | None = None,
    ) -> None:
        """Create the first context.

        `of_file`: the settings without those in the metadata, which are used if the others cannot be, as in Apache
        Kafka. Raises ConfigError if the stores cannot be used.
        """
        self._listener = listener
        self._settings = settings
        self._make = make
        self._steady_ms = steady_ms
        self._looked_ms = steady_ms()
        self._made_of = _sources(settings())
        self._context = self._first(self._made_of[0], of_file)

    def current(self) -> TlsContext:
        """The context for a new handshake. Checks for changes at most once a second. Never raises."""
        now_ms = self._steady_ms()
        if now_ms - self._looked_ms >= LOOKED_EVERY_MS:
            self._looked_ms = now_ms
            sources = _sources(self._settings())
            if sources != self._made_of:
                self._made_of = sources
                self._renew(sources[0])
        return self._context

    def _first(self, settings: TlsSettings, of_file: TlsSettings | None) -> TlsContext:
        try:
            return self._make(settings)
        except ConfigError as error:
            if of_file is None or of_file == settings:
                raise
            context = self._make(of_file)
            log.error(
                "listener %s: the stores that kafka-configs has set are not used, and those of the properties file are "
                "used instead: %s",
                self._listener,
                error,
            )
            return context

    def _renew(self, settings: TlsSettings) -> None:
        try:
            self._context = self._make(settings)
        except ConfigError as error:
            log.error(
                "listener %s: the changed stores are not used, and the previous ones stay in use: %s",
                self._listener,
                error,
            )
        else:
            log.info("listener %s: the changed stores are used for new connections", self._listener)


def _sources(settings: TlsSettings) -> tuple[TlsSettings, tuple[int, ...], tuple[int, ...]]:
    return settings, stamp(settings.keystore_location or ""), stamp(settings.truststore_location or "")


def serving_context(settings: TlsSettings, now_ms: int, listener: str) -> TlsContext:
    """The context for accepted sockets. Raises ConfigError with the setting, the cause and the remedy."""
    material = _material(settings, now_ms, listener, needs_key=True)
    if settings.client_auth == "required" and not material.trust_pem:
        raise ConfigError("ssl.client.auth=required needs the certificates to trust: set ssl.truststore.location")
    return _taken(lambda: server_context(material, settings.client_auth))


def dialing_context(settings: TlsSettings, now_ms: int, listener: str) -> TlsContext:
    """The context for connections to other nodes. Raises ConfigError with the setting, the cause and the remedy."""
    material = _material(settings, now_ms, listener, needs_key=False)
    return _taken(lambda: client_context(material, check_host=bool(settings.host_names)))


def listener_settings(config: BrokerConfig, endpoint: Endpoint) -> TlsSettings:
    """The settings of a listener with TLS.

    As in Apache Kafka, clients that log in need a certificate only if `ssl.client.auth` is set for the listener itself.
    """
    found = tls_settings(config, endpoint.name)
    needs_none = has_login(endpoint.protocol) and not is_prefixed(config, endpoint.name, "ssl.client.auth")
    return replace(found, client_auth="none") if needs_none else found


def check_stores(config: BrokerConfig, wall_ms: Callable[[], int]) -> None:
    """Raises ConfigError with the name of the listener if a listener with TLS cannot be served with these settings."""
    for endpoint in (*config.listeners, *config.controller_listeners):
        if endpoint.protocol in TLS_PROTOCOLS:
            try:
                serving_context(listener_settings(config, endpoint), wall_ms(), endpoint.name)
            except ConfigError as error:
                raise ConfigError(f"listener {endpoint.name}: {error}") from None


def listening_context(
    config: Callable[[], BrokerConfig], endpoint: Endpoint, wall_ms: Callable[[], int], steady_ms: Callable[[], int]
) -> RenewedContext:
    """The context for sockets that a listener accepts. Raises ConfigError, without the name of the listener."""
    return _followed(
        endpoint.name,
        config,
        lambda now: listener_settings(now, endpoint),
        lambda settings: serving_context(settings, wall_ms(), endpoint.name),
        steady_ms,
    )


def node_context(
    config: Callable[[], BrokerConfig], listener: str, wall_ms: Callable[[], int], steady_ms: Callable[[], int]
) -> RenewedContext:
    """The context for connections to other nodes' listeners of this name. Raises ConfigError."""
    try:
        return _followed(
            listener,
            config,
            lambda now: tls_settings(now, listener),
            lambda settings: dialing_context(settings, wall_ms(), listener),
            steady_ms,
        )
    except ConfigError as error:
        raise ConfigError(f"listener {listener}: {error}") from None


def _followed(
    listener: str,
    config: Callable[[], BrokerConfig],
    settings_in: Callable[[BrokerConfig], TlsSettings],
    make: Callable[[TlsSettings], TlsContext],
    steady_ms: Callable[[], int],
) -> RenewedContext:
    of_file = settings_in(config().with_dynamic({}, {}))
    return RenewedContext(listener, lambda: settings_in(config()), make, steady_ms, of_file)


def _material(settings: TlsSettings, now_ms: int, listener: str, *, needs_key: bool) -> Material:
    check_library()
    allowed = suites(settings.enabled_protocols, settings.cipher_suites)
    own = b""
    if needs_key or settings.has_keystore:
        identity = read_identity(settings, read_store)
        own = identity.pem
        if needs_key and identity.expires_ms <= now_ms:
            log.warning("listener %s: its certificate has expired; clients that check it refuse it", listener)
    return Material(own, read_trust(settings, read_public), (allowed.lowest, allowed.highest), allowed.ciphers)


def _taken(make: Callable[[], TlsContext]) -> TlsContext:
    try:
        return make()
    except OSError as error:
        raise ConfigError(f"OpenSSL does not accept the key, certificates or ciphers: {error}") from None
