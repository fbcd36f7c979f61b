"""Tests that Spark, confluent-kafka and kpybroker's own client can log in with a property file of Kafka's clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kpybroker.errors import ConfigError
from kpybroker.spark import Cluster, checkpoint
from kpybroker.spark.prerequisites import require_broker
from kpybroker.testing import Broker
from tests.certificates import sign

PATIENCE_S = 10
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
TOKEN = f'{MODULE} required username="id" password="hmac" tokenauth=true;'


def written(path: Path, settings: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    return path


@pytest.fixture
def secured(kpybroker_secure: Broker) -> Cluster:
    return Cluster(kpybroker_secure.bootstrap, kpybroker_secure.client.properties)


def changed(cluster: Cluster, path: Path, **changes: str) -> Cluster:
    """The cluster with some of its properties changed."""
    new = {name.replace("_", "."): text for name, text in changes.items()}
    return cluster._replace(command_config=written(path / "changed.properties", cluster.properties() | new))


def test_without_a_file_it_is_an_address() -> None:
    cluster = Cluster.of("a:1,b:2")
    assert cluster == Cluster("a:1,b:2", None) == Cluster.of(cluster)
    assert cluster.spark_options() == {"kafka.bootstrap.servers": "a:1,b:2"}
    assert cluster.confluent_settings() == {"bootstrap.servers": "a:1,b:2", "security.protocol": "PLAINTEXT"}


def test_a_file_may_name_the_address(tmp_path: Path) -> None:
    file = written(tmp_path / "a.properties", {"bootstrap.servers": "a:1", "acks": "all"})
    assert Cluster.in_file(file) == Cluster("a:1", file)
    assert Cluster.in_file(file).spark_options() == {"kafka.bootstrap.servers": "a:1"}
    with pytest.raises(ConfigError, match=r"b\.properties has no bootstrap\.servers: add it"):
        Cluster.in_file(written(tmp_path / "b.properties", {}))


def test_all_three_clients_are_let_in(secured: Cluster, tmp_path: Path) -> None:
    require_broker(secured)
    admin = AdminClient(secured.confluent_settings())
    admin.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
    assert checkpoint(tmp_path / "checkpoint", secured, "t") == str(tmp_path / "checkpoint")
    found = secured.properties()
    assert secured.spark_options() == {
        "kafka.bootstrap.servers": secured.bootstrap,
        **{f"kafka.{name}": text for name, text in found.items()},
    }
    assert set(found) > {"security.protocol", "sasl.jaas.config", "ssl.truststore.location"}


def test_secrets_are_in_the_file_alone(secured: Cluster, kpybroker_secure: Broker, tmp_path: Path) -> None:
    admin = AdminClient(secured.confluent_settings())
    admin.create_topics([NewTopic("u", 1)])["u"].result(PATIENCE_S)
    checkpoint(tmp_path, secured, "u")
    written_there = "".join(file.read_text() for file in tmp_path.iterdir())
    assert kpybroker_secure.client.password not in repr(secured) + written_there


def test_any_of_several_authorities_is_trusted(secured: Cluster, tmp_path: Path) -> None:
    authority = Path(secured.properties()["ssl.truststore.location"]).read_text()
    (tmp_path / "both.pem").write_text(sign("another").chain_pem + authority)
    both = changed(secured, tmp_path, ssl_truststore_location=str(tmp_path / "both.pem"))
    require_broker(both)
    AdminClient(both.confluent_settings()).list_topics(timeout=PATIENCE_S)


def test_stores_become_pem(secured: Cluster, tmp_path: Path) -> None:
    """librdkafka can read neither JKS stores nor PKCS12 stores with Kafka's settings."""
    store = sign("me").pkcs12(tmp_path / "me.p12", "of the store")
    both = changed(secured, tmp_path, ssl_keystore_location=str(store), ssl_keystore_password="of the store")
    found = both.confluent_settings()
    assert "PRIVATE KEY" in found["ssl.key.pem"]
    assert "BEGIN CERTIFICATE" in found["ssl.certificate.pem"]
    Producer(found).list_topics(timeout=PATIENCE_S)


def test_a_relative_file_is_found_by_the_jvm(secured: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    near = changed(secured, tmp_path, ssl_truststore_location="ca.pem")
    assert near.spark_options()["kafka.ssl.truststore.location"] == str(tmp_path / "ca.pem")


def test_names_of_hosts_may_be_left_unchecked(secured: Cluster, tmp_path: Path) -> None:
    unchecked = changed(secured, tmp_path, ssl_endpoint_identification_algorithm="")
    assert unchecked.confluent_settings()["ssl.endpoint.identification.algorithm"] == "none"
    assert secured.confluent_settings()["ssl.endpoint.identification.algorithm"] == "https"


def test_older_suites_have_the_names_of_openssl(secured: Cluster, tmp_path: Path) -> None:
    named = "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256"
    both = changed(secured, tmp_path, ssl_cipher_suites=f"{named},TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
    assert both.confluent_settings()["ssl.cipher.suites"] == "ECDHE-RSA-AES128-GCM-SHA256"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ssl_enabled_protocols": "TLSv1.3"}, "confluent-kafka cannot be limited to some versions of TLS"),
        ({"sasl_jaas_config": TOKEN}, "confluent-kafka has no login with delegation tokens"),
        ({"sasl_mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI is not served"),
        ({"ssl_truststore_location": "/nowhere"}, "ssl.truststore.location=/nowhere: No such file"),
        ({"security_protocol": "TLS"}, "name one of PLAINTEXT"),
        ({"sasl_jaas_confg": "x"}, "unknown setting sasl.jaas.confg; did you mean sasl.jaas.config"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(secured: Cluster, tmp_path: Path, changes: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        changed(secured, tmp_path, **changes).confluent_settings()
    assert "hmac" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sasl_jaas_config": f'{MODULE} required username="dev" password="guessed";'}, "the login of 'dev' .* failed"),
        (
            {"ssl_truststore_type": "PEM", "ssl_truststore_location": "{other}"},
            "this node does not accept its certificate",
        ),
        ({"security_protocol": "PLAINTEXT"}, "if its listener has TLS or logins"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "if its listener has TLS or logins"),
        ({"security_protocol": "SSL"}, "the connection broke.*log in if the listener has logins"),
    ],
)
def test_a_client_that_is_not_let_in_is_told_before_spark_starts(
    secured: Cluster, tmp_path: Path, changes: dict[str, str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.pem").write_text(sign("another").chain_pem)
    filled = {
        name: text.format(other=tmp_path / "other.pem") if "{o" in text else text for name, text in changes.items()
    }
    with pytest.raises(ConfigError, match=told) as caught:
        require_broker(changed(secured, tmp_path, **filled))
    assert "guessed" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""
