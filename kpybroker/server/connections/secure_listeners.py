"""The TLS contexts of a node's listeners, and the principals of their clients.

The modules of TLS are imported only if there is such a listener.
"""

from __future__ import annotations

from asyncio import BaseTransport
from collections.abc import Callable
from dataclasses import dataclass

from kpybroker.config import BrokerConfig, Endpoint
from kpybroker.config.listeners import TLS_PROTOCOLS
from kpybroker.config.sasl_settings import has_login
from kpybroker.errors import ConfigError
from kpybroker.security.principal import ANONYMOUS, Principal
from kpybroker.world import World
from kpybroker.world.secure import TlsContext


@dataclass(frozen=True)
class SecureListening:
    """Functions that return the context for handshakes, and the principal of a connection.

    The principal is None if no mapping rule matches the certificate.
    """

    context: Callable[[], TlsContext]
    principal_of: Callable[[BaseTransport], Principal | None]


def secure_listening(config: Callable[[], BrokerConfig], world: World) -> dict[str, SecureListening]:
    """The TLS listeners by name. When the stores in `config` change, the contexts change as well.
    Raises ConfigError with the listener, the setting and the remedy."""
    now = config()
    found = {}
    for endpoint in (*now.listeners, *now.controller_listeners):
        if endpoint.protocol in TLS_PROTOCOLS:
            try:
                found[endpoint.name] = _listening(config, endpoint, world)
            except ConfigError as error:
                raise ConfigError(f"listener {endpoint.name}: {error}") from None
    return found


def _listening(config: Callable[[], BrokerConfig], endpoint: Endpoint, world: World) -> SecureListening:
    from kpybroker.security.tls.contexts import listening_context
    from kpybroker.security.tls.names import parse_rules, principal_of
    from kpybroker.security.tls.settings import tls_settings

    rules = parse_rules(tls_settings(config(), endpoint.name).principal_rules)
    return SecureListening(
        listening_context(config, endpoint, world.wall_ms, world.steady_ms).current,
        (lambda _: ANONYMOUS)
        if has_login(endpoint.protocol)
        else (lambda transport: principal_of(_certificate(transport), rules)),
    )


def _certificate(transport: BaseTransport) -> bytes | None:
    """The client's certificate as DER; None if the client did not present one."""
    certificate: bytes | None = transport.get_extra_info("ssl_object").getpeercert(True)
    return certificate
