"""Reads the SASL settings by listener and mechanism: how clients log in, and how this node logs in to other nodes.

The most specific setting takes effect: `listener.name.<listener>.<mechanism>.<setting>`,
`listener.name.<listener>.<setting>`, `<setting>`. A JAAS text takes effect only with the prefix of listener and
mechanism, as in Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kpybroker.config.jaas import MODULES, OAUTHBEARER, OAUTHBEARER_MODULE, PLAIN_MODULE, Jaas, module_of
from kpybroker.config.key import Value
from kpybroker.config.listeners import Endpoint
from kpybroker.config.login import Login, check_mechanism, check_own_mechanism, login_from
from kpybroker.config.oauth_settings import HANDLER, TokenRules, check_handlers, token_rules
from kpybroker.config.security_keys import SASL_KEYS
from kpybroker.errors import ConfigError

PREFIX = "listener.name."
ENABLED = "sasl.enabled.mechanisms"
BETWEEN_BROKERS, TO_CONTROLLERS = "sasl.mechanism.inter.broker.protocol", "sasl.mechanism.controller.protocol"
SCRAM = "SCRAM-"
NEED_JAAS = {
    "PLAIN": (
        "has the users of PLAIN and their passwords",
        f'{PLAIN_MODULE} required user_<name>="<password>";',
    ),
    OAUTHBEARER: ("configures which tokens are accepted", f"{OAUTHBEARER_MODULE} required;"),
}
"""The mechanisms whose listeners need a JAAS text, with the purpose of the text and an example."""


class SaslListener(NamedTuple):
    """How clients log in at a listener. `users` has the passwords for PLAIN; `lifetimes_ms` the lifetime of a login for
    each mechanism, 0 for no limit; `tokens` are the rules of OAUTHBEARER, None without it."""

    mechanisms: tuple[str, ...]
    users: Mapping[str, str]
    lifetimes_ms: Mapping[str, int]
    receive_bytes_max: int
    tokens: TokenRules | None = None

    def __repr__(self) -> str:
        return f"SaslListener({', '.join(self.mechanisms)})"


def has_login(protocol: str) -> bool:
    """Whether clients log in at a listener with this security protocol."""
    return protocol.startswith("SASL_")


def sasl_listeners(texts: Mapping[str, str], endpoints: Sequence[Endpoint]) -> dict[str, SaslListener]:
    """The listeners with logins, by name. Raises ConfigError."""
    check_handlers(texts)
    return {each.name: _listener(texts, each.name) for each in endpoints if has_login(each.protocol)}


def login_to_brokers(
    texts: Mapping[str, str], for_brokers: Endpoint | None, found: Mapping[str, SaslListener]
) -> Login | None:
    """The login to other brokers; None if their listener does not use SASL."""
    if for_brokers is None or for_brokers.name not in found:
        return None
    name = for_brokers.name
    mechanism = _mechanism(texts, name, BETWEEN_BROKERS)
    if mechanism not in found[name].mechanisms:
        raise ConfigError(
            f"{BETWEEN_BROKERS}={mechanism} is not among the {ENABLED} of listener {name}, where brokers log in; add it"
        )
    return _login(texts, name, mechanism)


def login_to_controllers(texts: Mapping[str, str], names: Sequence[str], protocols: Mapping[str, str]) -> Login | None:
    """The login to controllers; None if the first listener of controller.listener.names does not use SASL."""
    if not names or not has_login(protocols.get(names[0], "")):
        return None
    mechanism = _mechanism(texts, names[0], TO_CONTROLLERS)
    if mechanism.startswith(SCRAM):
        raise ConfigError(
            f"{TO_CONTROLLERS}={mechanism}: the credentials of SCRAM are in the metadata log, which controllers can "
            "read only after they have logged in; use PLAIN"
        )
    return _login(texts, names[0], mechanism)


def _listener(texts: Mapping[str, str], name: str) -> SaslListener:
    mechanisms = _value(texts, name, ENABLED)
    assert isinstance(mechanisms, tuple)
    if not mechanisms:
        raise ConfigError(f"{ENABLED} is empty, but listener {name} has logins; name one of {', '.join(MODULES)}")
    lifetimes_ms: dict[str, int] = {}
    jaas: dict[str, Jaas] = {}
    for mechanism in dict.fromkeys(mechanisms):
        check_mechanism(ENABLED if ENABLED in texts else f"listener {name}: {ENABLED}", mechanism)
        lifetime_ms = _value(texts, name, "connections.max.reauth.ms", mechanism)
        assert isinstance(lifetime_ms, int)
        lifetimes_ms[mechanism] = lifetime_ms
        if mechanism in NEED_JAAS or _jaas_setting(name, mechanism) in texts:
            jaas[mechanism] = _jaas(texts, name, mechanism)
    size = _value(texts, name, "sasl.server.max.receive.size")
    assert isinstance(size, int)
    users = jaas["PLAIN"].users if "PLAIN" in jaas else {}
    tokens = _token_rules(texts, name, jaas[OAUTHBEARER]) if OAUTHBEARER in jaas else None
    return SaslListener(tuple(lifetimes_ms), users, lifetimes_ms, size, tokens)


def _jaas(texts: Mapping[str, str], name: str, mechanism: str) -> Jaas:
    setting = _jaas_setting(name, mechanism)
    if setting not in texts:
        has, example = NEED_JAAS[mechanism]
        raise ConfigError(f"{setting} is not set: it {has}; write {setting}={example}")
    return module_of(setting, texts[setting], mechanism)


def _token_rules(texts: Mapping[str, str], name: str, jaas: Jaas) -> TokenRules:
    handler = texts.get(f"{PREFIX}{name.lower()}.{OAUTHBEARER.lower()}.{HANDLER}", "").strip() or None
    return token_rules(name, handler, jaas, lambda setting: _value(texts, name, setting, OAUTHBEARER))


def _mechanism(texts: Mapping[str, str], name: str, setting: str) -> str:
    mechanism = str(_value(texts, name, setting))
    check_own_mechanism(setting, mechanism)
    return mechanism


def _login(texts: Mapping[str, str], name: str, mechanism: str) -> Login:
    setting = _jaas_setting(name, mechanism)
    login = login_from(setting, texts.get(setting), mechanism)
    if login.by_token:
        raise ConfigError(f"{setting}: tokenauth: a delegation token expires; nodes log in with a user's password")
    return login


def _jaas_setting(name: str, mechanism: str) -> str:
    return f"{PREFIX}{name.lower()}.{mechanism.lower()}.sasl.jaas.config"


def _value(texts: Mapping[str, str], listener: str, setting: str, mechanism: str = "") -> Value:
    """The effective value. Raises ConfigError, with the full name of the setting."""
    of_listener = f"{PREFIX}{listener.lower()}."
    key = SASL_KEYS[setting]
    names = (f"{of_listener}{mechanism.lower()}.{setting}", of_listener + setting, setting)
    for full in names if mechanism else names[1:]:
        if full in texts:
            return key._replace(name=full).parse(texts[full])
    return key.default_value
