"""Three brokers and controllers connect to each other over TLS, with client certificates or with SASL logins."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from kpybroker.client.dialer import Dialer, HandshakeFailed, broker_dialer
from kpybroker.config import parse_config
from kpybroker.config.login import Login
from kpybroker.world import Network
from tests.certificates import Signed, sign
from tests.server import test_sasl_cluster as sasl
from tests.server.test_replication import replicas
from tests.serving import serving

pytestmark = pytest.mark.slow

AUTHORITY = sign("authority")
BY_CERTIFICATE = {
    "listener.security.protocol.map": "CLIENTS:SSL,CONTROLLER:SSL",
    "inter.broker.listener.name": "CLIENTS",
    "controller.listener.names": "CONTROLLER",
    "ssl.client.auth": "required",
    "ssl.principal.mapping.rules": "RULE:^CN=(.*?),O=Tests$/$1/",
}
BY_LOGIN = {
    **sasl.SETTINGS,
    "listener.security.protocol.map": "CLIENTS:SASL_SSL,CONTROLLER:SASL_SSL",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
}


class SecureCluster(sasl.SaslCluster):
    """All listeners use TLS. `own` is the certificate of the nodes. Clients have a certificate signed by the
    authority."""

    def __init__(self, root: Path, settings: dict[str, str], own: Signed | None = None) -> None:
        trusted, self._client = root / "ca.pem", sign("ann", AUTHORITY).pem(root / "client.pem")
        trusted.write_text(AUTHORITY.chain_pem)
        stores = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str((own or sign("node", AUTHORITY)).pem(root / "node.pem")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted),
        }
        super().__init__(root, settings={**stores, **settings})

    def dialer(self, network: Network, login: Login | None) -> Dialer:
        return Dialer(network, login if self.has_logins else None, self._context)

    @property
    def has_logins(self) -> bool:
        """Whether clients and nodes log in with SASL over TLS."""
        return "sasl.enabled.mechanisms" in self.settings

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=AUTHORITY.chain_pem)
        context.load_cert_chain(self._client)
        return context


@pytest.mark.parametrize("settings", [BY_CERTIFICATE, BY_LOGIN], ids=["certificates", "logins"])
def test_nodes_dial_each_other_with_tls(tmp_path: Path, settings: dict[str, str]) -> None:
    async def whole() -> None:
        cluster = SecureCluster(tmp_path, settings)
        if cluster.has_logins:
            cluster.format()
        try:
            await cluster.start(1, 2, 3)
            await sasl.exchange(cluster)
            stopped = await cluster.leader()
            await cluster.stop(stopped)
            await cluster.start(stopped)
            await cluster.until(lambda: all(len(replicas(cluster, f"t{each}")) == 3 for each in (1, 2, 3)), "all host")
        finally:
            await cluster.close()

    asyncio.run(asyncio.wait_for(whole(), 120))


@pytest.mark.parametrize(
    ("own", "identification", "refusal"),
    [
        (sign("node", AUTHORITY, hosts=["elsewhere"]), "https", "IP address mismatch, certificate is not valid for"),
        (sign("node", AUTHORITY, hosts=["elsewhere"]), "", None),
        (sign("node", sign("another authority")), "", "unable to get local issuer certificate"),
    ],
    ids=["of another host", "of another host, unchecked", "of another authority"],
)
def test_a_node_verifies_the_certificate_of_the_node_it_dials(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, own: Signed, identification: str, refusal: str | None
) -> None:
    settings = SecureCluster(tmp_path, BY_CERTIFICATE, own).settings
    settings["listeners"] = "CLIENTS://127.0.0.1:0"

    async def whole() -> None:
        async with serving(tmp_path / "data", settings) as node:
            mine = {
                **settings,
                "ssl.keystore.location": str(sign("node", AUTHORITY).pem(tmp_path / "mine.pem")),
                "ssl.endpoint.identification.algorithm": identification,
            }
            dialing = broker_dialer(node.broker.world, lambda: parse_config(mine)).meet(
                "127.0.0.1", node.advertised[0].port, client_id="test"
            )
            if refusal is None:
                (await dialing).close()
            else:
                with pytest.raises(HandshakeFailed, match=refusal):
                    await dialing
                assert f"this node does not accept its certificate: {refusal}" in caplog.text

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_node_that_dials_a_listener_without_tls_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = SecureCluster(tmp_path, BY_CERTIFICATE).settings
    settings["listeners"] = "CLIENTS://127.0.0.1:0"
    without = {**settings, "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT"}

    async def whole() -> None:
        async with serving(tmp_path / "data", without) as node:
            dialing = broker_dialer(node.broker.world, lambda: parse_config(settings)).meet(
                "127.0.0.1", node.advertised[0].port, client_id="test"
            )
            with pytest.raises(HandshakeFailed):
                await dialing

    asyncio.run(asyncio.wait_for(whole(), 60))
    assert "with TLS: it closed the connection, as a listener without TLS does; compare" in caplog.text
    assert "it began with a TLS ClientHello" in caplog.text
