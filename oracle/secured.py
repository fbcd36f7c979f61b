"""Clusters with TLS, logins and ACLs: the settings of their nodes, and how clients connect.

Every listener is SASL_SSL, and each node has its own certificate. Logins at controllers use PLAIN, and logins between
brokers use SCRAM-SHA-512. The users NODE and ROOT may do everything; all other users have only the rights that ACLs
allow.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from kpybroker.config.jaas import MODULES
from kpybroker.config.login import Login
from kpybroker.config.security_keys import STANDARD_AUTHORIZER
from kpybroker.security.sasl.plain import PLAIN
from oracle.asking import Door
from tests.certificates import sign

LISTENER = "SASL_SSL"
CONTROLLER = "CONTROLLER"
NODE = Login("SCRAM-SHA-512", "node", "of-the-nodes")
ROOT = Login(PLAIN, "root", "of-root")
ALL_MECHANISMS = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")


class Secured:
    """The authority, certificates and users of one cluster."""

    listener = LISTENER
    """The name of the listener for clients and between brokers."""

    def __init__(self, directory: Path, users: Mapping[str, Login], lifetime_ms: int = 0) -> None:
        """directory: for certificates. users: further users, by name. lifetime_ms: of a login; 0 means no limit."""
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._users = {**users, ROOT.user: ROOT}
        self._lifetime_ms = lifetime_ms
        self._authority = sign("authority")
        self.trusted.write_text(self._authority.chain_pem)
        self.context = ssl.create_default_context(cafile=self.trusted)
        self.certificates: dict[int, bytes] = {}
        """Node id -> its newest certificate, as DER."""

    @property
    def trusted(self) -> Path:
        """The certificate that clients trust, as PEM."""
        return self._directory / "authority.pem"

    @property
    def credentials(self) -> list[str]:
        """The initial SCRAM credentials of a cluster, in the form of `storage format --add-scram`."""
        users = [one for one in (NODE, *self._users.values()) if one.mechanism != PLAIN]
        return [f"{one.mechanism}=[name={one.user},password={one.password}]" for one in users]

    def settings(self, node_id: int) -> dict[str, str]:
        """The settings of a node. Creates its certificate if there is none."""
        if node_id not in self.certificates:
            self.renew(node_id)
        mechanisms = f"listener.name.{LISTENER.lower()}"
        plain = {one.user: one for one in self._users.values() if one.mechanism == PLAIN}
        by_scram = {"scram-sha-256": "", "scram-sha-512": _given(NODE)}
        return {
            "listener.security.protocol.map": f"{LISTENER}:SASL_SSL,{CONTROLLER}:SASL_SSL",
            "inter.broker.listener.name": LISTENER,
            "sasl.enabled.mechanisms": ",".join(ALL_MECHANISMS),
            "listener.name.controller.sasl.enabled.mechanisms": PLAIN,
            "sasl.mechanism.controller.protocol": PLAIN,
            "sasl.mechanism.inter.broker.protocol": NODE.mechanism,
            "listener.name.controller.plain.sasl.jaas.config": _jaas(PLAIN, _given(NODE) + _accepted(NODE)),
            f"{mechanisms}.plain.sasl.jaas.config": _jaas(PLAIN, "".join(map(_accepted, plain.values()))),
            **{f"{mechanisms}.{name}.sasl.jaas.config": _jaas(name.upper(), who) for name, who in by_scram.items()},
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.store(node_id)),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trusted),
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{NODE.user};User:{ROOT.user}",
            "connections.max.reauth.ms": str(self._lifetime_ms),
        }

    def store(self, node_id: int) -> Path:
        """The file with the node's key and certificate."""
        return self._directory / f"node-{node_id}.pem"

    def renew(self, node_id: int) -> None:
        """Replace the node's key and certificate atomically: a reader finds either the old file or the new file."""
        made = sign(f"node-{node_id}", self._authority)
        made.pem(self._directory / "new.pem").replace(self.store(node_id))
        self.certificates[node_id] = made.certificate.public_bytes(Encoding.DER)

    def shown(self, address: tuple[str, int], timeout_s: float) -> bytes | None:
        """The certificate that a listener presents, as DER. Raises OSError."""
        with Door(self.context, None).open(address, timeout_s) as opened:
            return opened.getpeercert(binary_form=True)

    # ---- clients

    def door(self, user: str = ROOT.user) -> Door:
        return Door(self.context, self._users[user])

    def librdkafka(self, user: str = ROOT.user) -> dict[str, str]:
        """The settings of a client on librdkafka."""
        login = self._users[user]
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.trusted),
            "sasl.mechanism": login.mechanism,
            "sasl.username": login.user,
            "sasl.password": login.password,
        }

    def java(self, user: str) -> Path:
        """A file with the settings of a Java client."""
        login = self._users[user]
        settings = {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trusted),
            "sasl.mechanism": login.mechanism,
            "sasl.jaas.config": _jaas(login.mechanism, _given(login)),
        }
        path = self._directory / f"{user}.properties"
        path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
        return path


def _jaas(mechanism: str, options: str) -> str:
    return f"{MODULES[mechanism]} required{options};"


def _given(login: Login) -> str:
    """The JAAS options with which a client logs in."""
    return f' username="{login.user}" password="{login.password}"'


def _accepted(login: Login) -> str:
    """The JAAS option with which a server accepts this login by PLAIN."""
    return f' user_{login.user}="{login.password}"'
