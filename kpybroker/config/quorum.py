"""`process.roles`, `controller.quorum.voters` and `controller.quorum.bootstrap.servers`: who is who in a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kpybroker.config.listeners import Endpoint
from kpybroker.errors import ConfigError

VOTERS = "controller.quorum.voters"
SERVERS = "controller.quorum.bootstrap.servers"
VOTERS_MAX = 15


class Voter(NamedTuple):
    """One voter of controller.quorum.voters: id@host:port."""

    node_id: int
    host: str
    port: int


class ControllerServer(NamedTuple):
    """One address of controller.quorum.bootstrap.servers."""

    host: str
    port: int


def parse_voters(texts: Sequence[str]) -> tuple[Voter, ...]:
    """id@host:port entries. Raises ConfigError."""
    voters: list[Voter] = []
    for text in texts:
        node, at, address = text.partition("@")
        found = _address(address)
        if not (at and node.isdigit()) or found is None:
            raise ConfigError(f"{VOTERS}: cannot read {text!r}: write id@host:port")
        voters.append(Voter(int(node), *found))
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


def _address(text: str) -> ControllerServer | None:
    host, colon, port = text.strip().rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) <= 65535):
        return None
    return ControllerServer(host.strip("[]"), int(port))


def check_roles(
    roles: Sequence[str],
    node_id: int,
    voters: Sequence[Voter],
    servers: Sequence[ControllerServer],
    controller_listeners: Sequence[Endpoint],
) -> None:
    """Raises ConfigError where the roles contradict who votes, or where nobody could be reached."""
    named = ", ".join(f"{voter.node_id}@{voter.host}:{voter.port}" for voter in voters)
    votes = any(voter.node_id == node_id for voter in voters)
    if "controller" in roles:
        if voters and not votes:
            raise ConfigError(f"{VOTERS}: node.id={node_id} is not a voter ({named}); name this node")
        if len(voters) > 1 and not controller_listeners:
            raise ConfigError(
                f"{VOTERS} names {len(voters)} voters, and this one has no listener for them; add e.g. "
                "CONTROLLER://:9093 to listeners"
            )
        return
    if votes:
        raise ConfigError(
            f"{VOTERS}: node.id={node_id} is a voter ({named}) and process.roles lacks controller; add it, or give "
            "this broker another node.id"
        )
    if not voters and not servers:
        raise ConfigError(f"process.roles=broker: name the controllers: {VOTERS}=1@host:port,... or {SERVERS}")
    if controller_listeners:
        raise ConfigError(
            f"listeners: {controller_listeners[0].name} is a listener of controllers (controller.listener.names), and "
            "process.roles lacks controller; remove it, or add the role"
        )
