"""Parses `process.roles`, `controller.quorum.voters` and `controller.quorum.bootstrap.servers`."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from typing import NamedTuple

from kpybroker.config.listeners import Endpoint
from kpybroker.errors import ConfigError

VOTERS = "controller.quorum.voters"
SERVERS = "controller.quorum.bootstrap.servers"
INITIAL = "kpybroker.initial.controllers"
STANDALONE, NO_CONTROLLERS = "standalone", "none"
VOTERS_MAX = 15
DIRECTORY_BYTES = 16


class StaticVoter(NamedTuple):
    """One voter of controller.quorum.voters: id@host:port."""

    node_id: int
    host: str
    port: int


class ControllerServer(NamedTuple):
    """One address of controller.quorum.bootstrap.servers."""

    host: str
    port: int


class InitialController(NamedTuple):
    """One voter of a new quorum with dynamic voters (KIP-853): id@host:port:directory-id."""

    node_id: int
    host: str
    port: int
    directory_id: bytes


def parse_voters(texts: Sequence[str]) -> tuple[StaticVoter, ...]:
    """id@host:port entries. Raises ConfigError."""
    voters: list[StaticVoter] = []
    for text in texts:
        node, at, address = text.partition("@")
        found = _address(address)
        if not (at and node.isdigit()) or found is None:
            raise ConfigError(f"{VOTERS}: cannot read {text!r}: write id@host:port")
        voters.append(StaticVoter(int(node), *found))
    for number, voter in enumerate(voters):
        for other in voters[:number]:
            if other.node_id == voter.node_id:
                raise ConfigError(f"{VOTERS}: node {voter.node_id} is named twice; give every voter an id of its own")
            if (other.host, other.port) == (voter.host, voter.port):
                raise ConfigError(f"{VOTERS}: {other.node_id} and {voter.node_id} have the same address; correct one")
    if len(voters) > VOTERS_MAX:
        raise ConfigError(f"{VOTERS}: {len(voters)} voters, at most {VOTERS_MAX} are allowed; name 3 or 5")
    return tuple(voters)


def parse_servers(texts: Sequence[str]) -> tuple[ControllerServer, ...]:
    """host:port entries. Raises ConfigError."""
    servers = []
    for text in texts:
        found = _address(text)
        if found is None:
            raise ConfigError(f"{SERVERS}: cannot read {text!r}: write host:port")
        servers.append(found)
    return tuple(servers)


def parse_initial(
    text: str | None,
    node_id: int,
    roles: Sequence[str],
    voters: Sequence[StaticVoter],
    servers: Sequence[ControllerServer],
    said: str = INITIAL,
) -> tuple[InitialController, ...] | None:
    """The initial voters: empty if other nodes have them, None if this node is the only voter. Raises ConfigError.

    `said` is the value of the setting.
    """
    if text is None or text == STANDALONE:
        return None
    if voters:
        raise ConfigError(f"{said} and {VOTERS} both name the voters; set one of them")
    if text == NO_CONTROLLERS:
        if not servers:
            raise ConfigError(f"{said}: name the existing controllers in {SERVERS}=host:port,...")
        return ()
    found = tuple(_initial(entry.strip()) for entry in text.split(","))
    ids = [controller.node_id for controller in found]
    if len(set(ids)) < len(ids) or len({controller.directory_id for controller in found}) < len(ids):
        raise ConfigError(f"{INITIAL}: a node or a directory is named twice in {text!r}; each belongs to one voter")
    if len(found) > VOTERS_MAX:
        raise ConfigError(f"{INITIAL}: {len(found)} voters, at most {VOTERS_MAX} are allowed; name 3 or 5")
    if "controller" in roles and node_id not in ids:
        raise ConfigError(f"{INITIAL}: node.id={node_id} is not among {ids}; add it, or write {NO_CONTROLLERS}")
    return found


def _initial(text: str) -> InitialController:
    node, at, rest = text.partition("@")
    address, _, directory = rest.rpartition(":")
    found = _address(address)
    try:
        raw = urlsafe_b64decode(directory + "==")
    except (binascii.Error, ValueError):
        raw = b""
    if not (at and node.isdigit()) or found is None or len(raw) != DIRECTORY_BYTES:
        raise ConfigError(
            f"{INITIAL}: cannot read {text!r}: write {STANDALONE}, {NO_CONTROLLERS}, or id@host:port:directory-id,... "
            "with 22 characters of base64 as kafka-storage random-uuid makes them"
        )
    return InitialController(int(node), found.host, found.port, raw)


def _address(text: str) -> ControllerServer | None:
    host, colon, port = text.strip().rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) <= 65535):
        return None
    return ControllerServer(host.strip("[]"), int(port))


def check_roles(
    roles: Sequence[str],
    node_id: int,
    voters: Sequence[StaticVoter],
    servers: Sequence[ControllerServer],
    controller_listeners: Sequence[Endpoint],
) -> None:
    """Raises ConfigError if the roles contradict the voters, or if no controllers are configured."""
    named = ", ".join(f"{voter.node_id}@{voter.host}:{voter.port}" for voter in voters)
    votes = any(voter.node_id == node_id for voter in voters)
    if "controller" in roles:
        if voters and not votes:
            raise ConfigError(f"{VOTERS}: node.id={node_id} is not a voter ({named}); name this node")
        if len(voters) > 1 and not controller_listeners:
            raise ConfigError(
                f"{VOTERS} names {len(voters)} voters, but this node has no listener for them; add e.g. "
                "CONTROLLER://:9093 to listeners"
            )
        return
    if votes:
        raise ConfigError(
            f"{VOTERS}: node.id={node_id} is a voter ({named}), but process.roles lacks controller; add it, or give "
            "this broker another node.id"
        )
    if not voters and not servers:
        raise ConfigError(f"process.roles=broker: name the controllers: {VOTERS}=1@host:port,... or {SERVERS}")
    if controller_listeners:
        raise ConfigError(
            f"listeners: {controller_listeners[0].name} is a listener of controllers (controller.listener.names), but "
            "process.roles lacks controller; remove it, or add the role"
        )
