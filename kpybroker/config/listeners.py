"""Parses `listeners` and `advertised.listeners` (NAME://host:port), and the security protocol of each name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kpybroker.errors import ConfigError

FORM = re.compile(r"([A-Za-z0-9_.\-]+)://(?:\[([0-9A-Za-z:.%\-]*)\]|([0-9A-Za-z._\-]*)):(-?[0-9]{1,10})", re.ASCII)
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""The security protocols, in the order of Kafka's codes."""
TLS_PROTOCOLS = ("SSL", "SASL_SSL")
SECURE = frozenset(PROTOCOLS) - {"PLAINTEXT"}
ANY_ADDRESS = ("0.0.0.0", "::", "0:0:0:0:0:0:0:0")
PORT_MAX = 65535
LISTENERS_MAX = 64


class Endpoint(NamedTuple):
    """One listener. An empty host means every interface (to listen) or the broker's own address (to advertise); port 0
    means that a free port is chosen when the broker binds."""

    name: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"


def parse_listeners(setting: str, texts: Sequence[str], protocols: dict[str, str]) -> tuple[Endpoint, ...]:
    """Parse NAME://host:port entries; `protocols` maps upper-case names to protocols. Raises ConfigError."""
    if len(texts) > LISTENERS_MAX:
        raise ConfigError(f"{setting}: {len(texts)} listeners, at most {LISTENERS_MAX} are allowed")
    endpoints = []
    for text in texts:
        form = FORM.fullmatch(text)
        if form is None:
            raise ConfigError(
                f"{setting}: cannot read {text!r}: write NAME://host:port, e.g. PLAINTEXT://127.0.0.1:9092"
            )
        name, port = form[1].upper(), int(form[4])
        if not 0 <= port <= PORT_MAX:
            raise ConfigError(f"{setting}: port {port} in {text!r} is not between 0 and {PORT_MAX}")
        if name not in protocols:
            raise ConfigError(
                f"{setting}: listener {name} is not in listener.security.protocol.map; add {name}:PLAINTEXT or the like"
            )
        endpoints.append(Endpoint(name, form[2] or form[3] or "", port, protocols[name]))
    names = [endpoint.name for endpoint in endpoints]
    if len(set(names)) != len(names):
        raise ConfigError(f"{setting}: each listener needs a name of its own, got {', '.join(names)}")
    return tuple(endpoints)


def parse_protocol_map(
    text: str, controller_names: Sequence[str], listeners: Sequence[str], given: bool
) -> dict[str, str]:
    """listener.security.protocol.map. If it is not set, and no listener is named after TLS or logins, controller
    listeners are PLAINTEXT (KIP-597). `listeners` are the entries of that setting. Raises ConfigError."""
    protocols: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (part.strip() for part in entry.partition(":"))
        if not colon or protocol.upper() not in PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map: cannot read {entry!r}: write NAME:PROTOCOL, "
                f"the protocol one of {', '.join(PROTOCOLS)}"
            )
        protocols[name.upper()] = protocol.upper()
    names = {*controller_names, *(entry.partition("://")[0].upper() for entry in listeners)}
    if not given and names.isdisjoint(SECURE):
        protocols |= {name: protocols.get(name, "PLAINTEXT") for name in controller_names}
    return protocols


def check_controller_protocols(names: Sequence[str], protocols: dict[str, str]) -> None:
    """Check that the protocol of each listener of other nodes is known. Raises ConfigError."""
    for name in names:
        if name not in protocols:
            raise ConfigError(
                f"listener.security.protocol.map: it lacks {name}, which is in controller.listener.names, and is "
                f"PLAINTEXT by default only if no listener has TLS or logins; add {name}:SSL, or the protocol that it "
                "has, and those of the other listeners"
            )


def check_listening(endpoints: Sequence[Endpoint]) -> None:
    """Raise ConfigError if listeners have the same address, or if there are no listeners."""
    if not endpoints:
        raise ConfigError("listeners: no listener for clients; write e.g. listeners=PLAINTEXT://:9092")
    taken: dict[tuple[str, int], str] = {}
    for endpoint in endpoints:
        if endpoint.port:
            other = taken.setdefault((endpoint.host, endpoint.port), endpoint.name)
            if other != endpoint.name:
                raise ConfigError(f"listeners: {other} and {endpoint.name} have the same port {endpoint.port}")


def listener_for_brokers(endpoints: Sequence[Endpoint], named: str | None) -> Endpoint | None:
    """The listener at which other brokers reach this one; None for a node without listeners for clients.

    `named` is inter.broker.listener.name. Without it, brokers use the listener PLAINTEXT, or the first listener if
    there is none.
    """
    wanted = (named or "PLAINTEXT").upper()
    return next((each for each in endpoints if each.name == wanted), endpoints[0] if endpoints else None)


def check_advertised(advertised: Sequence[Endpoint], listening: Sequence[Endpoint]) -> None:
    """Check that every advertised listener exists, and that clients can connect to its address."""
    names = {endpoint.name for endpoint in listening}
    for endpoint in advertised:
        if endpoint.name not in names:
            raise ConfigError(
                f"advertised.listeners: {endpoint.name} is not in listeners; name one of {', '.join(sorted(names))}"
            )
        if endpoint.host in ANY_ADDRESS:
            raise ConfigError(f"advertised.listeners: clients cannot connect to {endpoint.host}; use another address")
