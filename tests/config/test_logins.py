"""Tests of the settings of SASL: the users who may log in, the login of a node, and refused values. No password is
shown."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.config import BrokerConfig, parse_config, parse_properties
from kpybroker.config.dynamic import why_unusable
from kpybroker.config.effect import BROKER
from kpybroker.config.jaas import TEXT_MAX, parse_jaas
from kpybroker.config.login import Login, login_of
from kpybroker.config.oauth_settings import SignedTokens
from kpybroker.config.security_keys import SASL_KEYS
from kpybroker.errors import ConfigError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = f'{PLAIN} required username="admin" password="hush" user_admin="hush" user_ann="hush2";'
SETTINGS = {
    "listeners": "IN://:9092,CLIENTS://:9094",
    "listener.security.protocol.map": "IN:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "IN",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.clients.plain.sasl.jaas.config": JAAS,
}
CONTROLLERS = {
    "process.roles": "broker",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    "listener.security.protocol.map": "IN:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": f'{PLAIN} required username="node" password="hush";',
}


def parsed(**more: str | None) -> BrokerConfig:
    """The settings with these overrides; None removes a setting."""
    named = {name.replace("_", "."): text for name, text in more.items()}
    return parse_config({name: text for name, text in {**SETTINGS, **named}.items() if text is not None})


def test_a_listener_has_its_mechanisms_and_users() -> None:
    config = parsed()
    assert set(config.sasl_listeners) == {"CLIENTS"}
    clients = config.sasl_listeners["CLIENTS"]
    assert clients.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert clients.users == {"admin": "hush", "ann": "hush2"}
    assert clients.lifetimes_ms == {"PLAIN": 0, "SCRAM-SHA-256": 0}
    assert (config.login_to_brokers, config.login_to_controllers) == (None, None)
    assert "hush" not in repr(clients)


def test_the_most_specific_setting_wins() -> None:
    several = {
        "connections.max.reauth.ms": "1000",
        "listener.name.clients.connections.max.reauth.ms": "2000",
        "listener.name.clients.plain.connections.max.reauth.ms": "3000",
        "listener.name.clients.sasl.server.max.receive.size": "4000",
        "listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
    }
    clients = parse_config({**SETTINGS, **several}).sasl_listeners["CLIENTS"]
    assert clients.lifetimes_ms == {"SCRAM-SHA-512": 2000, "PLAIN": 3000}
    assert clients.receive_bytes_max == 4000


def test_brokers_and_controllers_log_in() -> None:
    config = parse_config(
        {
            **SETTINGS,
            **CONTROLLERS,
            "inter.broker.listener.name": "CLIENTS",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
            "listener.name.clients.scram-sha-256.sasl.jaas.config": f"{SCRAM} required username=b password=hush;",
        }
    )
    assert config.login_to_brokers == Login("SCRAM-SHA-256", "b", "hush")
    assert config.login_to_controllers == Login("PLAIN", "node", "hush")
    assert "hush" not in repr(config.login_to_brokers)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sasl.enabled.mechanisms": None}, "GSSAPI is not served: it needs Kerberos"),
        ({"sasl.enabled.mechanisms": "plain"}, "plain is not served: there is no such mechanism"),
        ({"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms is empty"),
        ({"listener.name.clients.plain.sasl.jaas.config": None}, "plain.sasl.jaas.config is not set: it has the users"),
        ({"listener.name.clients.plain.sasl.jaas.config": "hush"}, "must have one login module and end with"),
        ({"listener.name.clients.plain.sasl.jaas.config": f"{SCRAM} required;"}, "no other Java class is run here"),
        ({"inter.broker.listener.name": "CLIENTS"}, "GSSAPI is not served"),
        (
            {"inter.broker.listener.name": "CLIENTS", "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"},
            "is not among the sasl.enabled.mechanisms of listener CLIENTS",
        ),
        (
            {"inter.broker.listener.name": "CLIENTS", "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"},
            "listener.name.clients.scram-sha-256.sasl.jaas.config is not set: it has the user that logs in",
        ),
        ({**CONTROLLERS, "sasl.mechanism.controller.protocol": None}, "sasl.mechanism.controller.protocol=GSSAPI"),
        (
            {**CONTROLLERS, "sasl.mechanism.controller.protocol": "SCRAM-SHA-256"},
            "after they have logged in; use PLAIN",
        ),
        (
            {**CONTROLLERS, "listener.name.controller.plain.sasl.jaas.config": f"{PLAIN} required username=a;"},
            "password is missing",
        ),
        ({"sasl.server.callback.handler.class": "org.x.Handler"}, "Java classes are not run"),
    ],
)
def test_unsupported_settings_are_refused_with_the_reason(settings: dict[str, str | None], said: str) -> None:
    texts = {name: text for name, text in {**SETTINGS, **settings}.items() if text is not None}
    with pytest.raises(ConfigError) as refused:
        parse_config(texts)
    assert said in str(refused.value)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("name", sorted(SASL_KEYS))
def test_a_change_while_the_broker_runs_is_refused(name: str) -> None:
    """The change would have no effect until the next start, so a removed user could still log in."""
    text = "hush;" if "jaas" in name else "1" if name.endswith(("ms", "size", "seconds")) else "PLAIN"
    for prefixed in (name, f"listener.name.clients.{name}", f"listener.name.clients.plain.{name}"):
        said = why_unusable(BROKER, prefixed, text) or ""
        assert "cannot be changed while the broker runs" in said
        assert "hush" not in said
    config = parsed()
    assert config.with_dynamic({}, {f"listener.name.clients.{name}": text}) is config


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_][a-z0-9_.\-]{0,9}", fullmatch=True), st.text(st.characters(codec="utf-8")), max_size=5
    )
)
def test_any_value_may_be_quoted(options: dict[str, str]) -> None:
    backslash, quote = "\\", '"'

    def escaped(value: str) -> str:
        escapes = {backslash: backslash * 2, quote: backslash + quote, "\n": backslash + "n", "\r": backslash + "r"}
        return "".join(escapes.get(each, each) for each in value)

    quoted = "".join(f' {name}="{escaped(value)}"' for name, value in options.items())
    jaas = parse_jaas("x", f"a.Module required{quoted};")
    assert (jaas.module, jaas.options) == ("a.Module", options)
    assert jaas.users == {name[5:]: value for name, value in options.items() if name.startswith("user_")}
    assert repr(jaas) == "Jaas(a.Module)"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("x=a-b.c_d$1", "a-b.c_d$1"),
        ("x=é", "é"),
        ("x='it is'", "it is"),
        ("""x='say "it"'""", 'say "it"'),
        ("""x="it's" """, "it's"),
        ("x=''", ""),
        (r'x="\041\101b\7"', "!Ab\x07"),
        (r'x="\477\8"', "'78"),
        (r'x="\a\b\f\n\r\t\v\\\"\q"', '\a\b\f\n\r\t\v\\"q'),
        ("x=a /* and so on; */", "a"),
        ("x=a//\n", "a"),
        ("/ a slash begins a comment\n x=a", "a"),
        ('x="a//b"', "a//b"),
    ],
)
def test_values_are_read_as_apache_kafka_reads_them(written: str, read: str) -> None:
    assert parse_jaas("x", f"/* users */ a.Module required {written};//").options == {"x": read}


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "a.B required x=hush/1;",
        "a.B required x=hush@1;",
        "a.B required x=1hush;",
        "a.B required x=-hush;",
        'a.B required x="hush\ni";',
        'a.B required x="hush\ri";',
        "a.B required x='hush\";",
        "a.B required x=hush /*;",
        "1.B required x=hush;",
        '"" required x=hush;',
        "a.B;",
        "a.B required",
        "a.B required x;",
        "a.B required x=;",
        "a.B required x=hush y;",
        'a.B required x="hush;',
        "a.B perhaps x=hush;",
        "a.B required x=hush; c.D required;",
        "a.B required x==hush;",
        "x" * (TEXT_MAX + 1),
    ],
)
def test_invalid_jaas_text_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_jaas("some.setting", text)
    assert str(refused.value).startswith("some.setting: ")
    assert "hush" not in str(refused.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_jaas("x", text).module


def test_the_examples_in_the_documentation_are_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security-sasl.md").read_text()
    examples = [block for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if "listeners=" in block]
    one, cluster, tokens = (parse_config(parse_properties(text, "security-sasl.md")) for text in examples)
    assert one.sasl_listeners["SASL_PLAINTEXT"].users == {"admin": "change-me", "ann": "change-me-too"}
    assert one.login_to_brokers == Login("PLAIN", "admin", "change-me")
    assert cluster.login_to_brokers == Login("SCRAM-SHA-512", "node", "change-me")
    assert cluster.login_to_controllers == Login("PLAIN", "node", "change-me")
    assert cluster.sasl_listeners["CONTROLLER"].users == {"node": "change-me"}
    rules = tokens.sasl_listeners["CLIENTS"].tokens
    assert isinstance(rules, SignedTokens)
    assert (rules.audiences, rules.issuer) == (("kafka",), "https://login.example.org")
    assert str(rules.keys) == "KeysUrl(https://login.example.org/keys)"


def test_the_login_of_a_client() -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS}
    assert login_of(settings) == Login("PLAIN", "admin", "hush")
    assert login_of({**settings, "security.protocol": "SSL"}) is None
    assert login_of({}) is None
    for wrong, said in (
        ({"sasl.mechanism": "GSSAPI"}, "Kerberos"),
        ({"sasl.mechanism": "SCRAM-SHA-256"}, "the login module of SCRAM-SHA-256 is"),
        ({"sasl.jaas.config": f"{PLAIN} required username=a password=hush tokenauth=true;"}, "delegation tokens"),
    ):
        with pytest.raises(ConfigError, match=said):
            login_of({**settings, **wrong})
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config is not set"):
        login_of({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"})
