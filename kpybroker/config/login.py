"""The credentials with which a client logs in, from the settings of Kafka's clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kpybroker.config.jaas import MODULES, OAUTHBEARER, module_of
from kpybroker.errors import ConfigError

NOT_SERVED = {"GSSAPI": "it needs Kerberos: a key distribution centre, keytabs and a library in C"}
"""Mechanisms of Apache Kafka that are refused, with the reasons."""


class Login(NamedTuple):
    """A mechanism, a user and the user's password, which is never logged. `by_token`: user and password are the id and
    the secret of a delegation token."""

    mechanism: str
    user: str
    password: str
    by_token: bool = False

    def __repr__(self) -> str:
        return f"Login({self.mechanism}, {self.user!r})"


def check_mechanism(setting: str, mechanism: str) -> None:
    """Raises ConfigError with the reason if the broker does not serve this mechanism."""
    if mechanism in MODULES:
        return
    reason = NOT_SERVED.get(mechanism, "there is no such mechanism in Apache Kafka")
    raise ConfigError(f"{setting}={mechanism} is not served: {reason}; use one of {', '.join(MODULES)}")


def check_own_mechanism(setting: str, mechanism: str) -> None:
    """Raises ConfigError with the reason if kpybroker itself cannot log in with this mechanism."""
    check_mechanism(setting, mechanism)
    if mechanism == OAUTHBEARER:
        others = ", ".join(name for name in MODULES if name != OAUTHBEARER)
        raise ConfigError(
            f"{setting}={mechanism} is not served: kpybroker checks tokens of clients, but cannot fetch one for "
            f"itself; use one of {others}"
        )


def login_from(setting: str, jaas_text: str | None, mechanism: str) -> Login:
    """The `username` and `password` of a JAAS text. Raises ConfigError."""
    if jaas_text is None:
        raise ConfigError(
            f"{setting} is not set: it has the user that logs in; write {setting}="
            f'{MODULES[mechanism]} required username="..." password="...";'
        )
    options = module_of(setting, jaas_text, mechanism).options
    for name in ("username", "password"):
        if not options.get(name):
            raise ConfigError(f"{setting}: {name} is missing; {mechanism} logs in with username and password")
    by_token = options.get("tokenauth", "false").lower() == "true"
    if by_token and mechanism == "PLAIN":
        raise ConfigError(f"{setting}: tokenauth: delegation tokens log in with SCRAM-SHA-256 or SCRAM-SHA-512")
    return Login(mechanism, options["username"], options["password"], by_token)


def login_of(properties: Mapping[str, str]) -> Login | None:
    """The login of a client with these settings (`security.protocol`, `sasl.mechanism`, `sasl.jaas.config`); None if
    its protocol has no login. Raises ConfigError.
    """
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if not protocol.startswith("SASL_"):
        return None
    mechanism = properties.get("sasl.mechanism", "GSSAPI").strip()
    check_own_mechanism("sasl.mechanism", mechanism)
    return login_from("sasl.jaas.config", properties.get("sasl.jaas.config"), mechanism)
