"""Translates the settings of Apache Kafka's clients to those of librdkafka (confluent-kafka)."""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.client_properties import check_client_properties, has_tls, protocol_of
from kpybroker.config.login import login_of
from kpybroker.errors import ConfigError
from kpybroker.security.tls.settings import TlsSettings, client_tls_settings
from kpybroker.security.tls.stores import check_library, read_identity, read_trust
from kpybroker.security.tls.suites import VERSIONS, suites
from kpybroker.world.secure import read_public, read_store


def librdkafka_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """The settings for `security.protocol`, the login and TLS. They contain the password and the private key, so they
    must never be printed.

    Stores of all kinds (PEM, PKCS12, JKS) become PEM in the settings, so that the settings can be used on other
    machines without these files. Raises ConfigError for properties that are invalid or that librdkafka does not
    support.
    """
    check_client_properties(properties)
    found = {"security.protocol": protocol_of(properties)}
    login = login_of(properties)
    if login is not None:
        if login.by_token:
            raise ConfigError("sasl.jaas.config: confluent-kafka has no login with delegation tokens; name a user")
        found |= {"sasl.mechanism": login.mechanism, "sasl.username": login.user, "sasl.password": login.password}
    if has_tls(properties):
        check_library()
        found |= _tls(client_tls_settings(properties))
    return found


def _tls(settings: TlsSettings) -> dict[str, str]:
    allowed = suites(settings.enabled_protocols, settings.cipher_suites)
    if (allowed.lowest, allowed.highest) != (VERSIONS[0], VERSIONS[-1]):
        raise ConfigError(
            f"only {allowed.lowest} to {allowed.highest} is allowed (ssl.enabled.protocols, ssl.cipher.suites), but "
            f"confluent-kafka cannot be limited to some versions of TLS: allow {' and '.join(VERSIONS)}"
        )
    found = {"ssl.endpoint.identification.algorithm": settings.host_names or "none"}
    if allowed.ciphers:
        found["ssl.cipher.suites"] = allowed.ciphers
    trusted = read_trust(settings, read_public)
    if trusted:
        found["ssl.ca.pem"] = trusted
    if settings.has_keystore:
        own = read_identity(settings, read_store).pem.decode()
        found |= {"ssl.key.pem": own, "ssl.certificate.pem": own}
    return found
