"""Tests of the settings of a listener with OAUTHBEARER: they are set by listener and mechanism, and tokens are never
checked less strictly than configured."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.config import parse_config
from kpybroker.config.http_url import HttpUrl, parse_url
from kpybroker.config.login import login_of
from kpybroker.config.oauth_settings import (
    HANDLER_OF_SIGNED,
    KeysFile,
    KeysUrl,
    SignedTokens,
    TokenRules,
    UnsecuredTokens,
)
from kpybroker.errors import ConfigError

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
OF_CLIENTS = "listener.name.clients.oauthbearer."
UNSECURED = {
    "listeners": "IN://:9092,CLIENTS://:9094",
    "listener.security.protocol.map": "IN:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "IN",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    f"{OF_CLIENTS}sasl.jaas.config": f"{MODULE} required;",
}
SIGNED = {
    **UNSECURED,
    f"{OF_CLIENTS}sasl.server.callback.handler.class": HANDLER_OF_SIGNED,
    "sasl.oauthbearer.jwks.endpoint.url": "https://login.example.org/keys",
}
SSL = 'ssl.truststore.location="/hush.pem"'


def rules(settings: dict[str, str]) -> TokenRules | None:
    return parse_config(settings).sasl_listeners["CLIENTS"].tokens


def with_options(options: str) -> dict[str, str]:
    return {**UNSECURED, f"{OF_CLIENTS}sasl.jaas.config": f"{MODULE} required {options};"}


def test_tokens_are_unsecured_without_a_handler() -> None:
    assert rules(UNSECURED) == UnsecuredTokens("sub", "scope", (), 0)
    options = (
        'unsecuredValidatorPrincipalClaimName=" name " unsecuredValidatorScopeClaimName="scp" '
        'unsecuredValidatorRequiredScope="read  write" unsecuredValidatorAllowableClockSkewMs="3000" '
        'unsecuredLoginStringClaim_sub="broker"'
    )
    assert rules(with_options(options)) == UnsecuredTokens("name", "scp", ("read", "write"), 3000)


def test_the_most_specific_setting_wins() -> None:
    several = {
        "sasl.oauthbearer.expected.audience": "a",
        "listener.name.clients.sasl.oauthbearer.expected.audience": "b",
        f"{OF_CLIENTS}sasl.oauthbearer.expected.audience": "c,d",
        "listener.name.clients.sasl.oauthbearer.expected.issuer": "me",
        f"{OF_CLIENTS}sasl.oauthbearer.clock.skew.seconds": "5",
        "listener.name.in.sasl.oauthbearer.sub.claim.name": "other",
        "sasl.oauthbearer.scope.claim.name": "scp",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "7",
        f"{OF_CLIENTS}sasl.jaas.config": f"{MODULE} required {SSL};",
    }
    url = HttpUrl("https", "login.example.org", 443, "/keys")
    found = rules({**SIGNED, **several})
    tls = {"ssl.truststore.location": "/hush.pem"}
    assert found == SignedTokens(KeysUrl(url, 3_600_000, 7, 10_000, tls), ("c", "d"), "me", 5, "scp", "sub")
    assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("url", "keys"),
    [
        ("file:///etc/keys.json", KeysFile("/etc/keys.json")),
        ("file:/etc/a%20b", KeysFile("/etc/a%20b")),
        ("FILE:///k", KeysFile("/k")),
        ("http://[::1]:81", HttpUrl("http", "::1", 81, "/")),
        ("http://host/a/b?c=d#e", HttpUrl("http", "host", 80, "/a/b?c=d")),
    ],
)
def test_the_location_of_keys(url: str, keys: KeysFile | HttpUrl) -> None:
    found = rules({**SIGNED, "sasl.oauthbearer.jwks.endpoint.url": url})
    assert isinstance(found, SignedTokens)
    assert (found.keys.url if isinstance(found.keys, KeysUrl) else found.keys) == keys


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {f"{OF_CLIENTS}sasl.jaas.config": None},
            "oauthbearer.sasl.jaas.config is not set: it configures which tokens are",
        ),
        ({f"{OF_CLIENTS}sasl.jaas.config": "a.B required;"}, f"the login module of OAUTHBEARER is {MODULE}"),
        ({f"{OF_CLIENTS}sasl.server.callback.handler.class": "a.B"}, f"a.B cannot be applied.* {HANDLER_OF_SIGNED}"),
        ({f"{OF_CLIENTS}sasl.server.callback.handler.class": None}, "is set but would not be checked.* set that, or"),
        ({"sasl.server.callback.handler.class": HANDLER_OF_SIGNED}, "Only listener.name.<listener>.oauthbearer."),
        ({"listener.name.clients.plain.sasl.server.callback.handler.class": "a.B"}, "Java classes are not run"),
        ({"sasl.oauthbearer.jwt.validator.class": "a.B"}, "validator.class=a.B cannot be applied: Java classes"),
        ({"sasl.oauthbearer.jwks.endpoint.url": None}, "jwks.endpoint.url is not set; it must name the public keys"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file:keys"}, "a file needs its whole path"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "ftp://x/y"}, "must begin with http:// or https://"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "http:///y"}, "it has no host"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "http://a:hush@x/y"}, "no user and no password"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "http://x:99999/y"}, "Port out of range"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "http://x/a b"}, "no spaces"),
        ({"sasl.oauthbearer.jwks.endpoint.refresh.ms": "0"}, "refresh.ms=0: it must be at least 1"),
        ({"sasl.oauthbearer.jwks.endpoint.refresh.ms": "-1"}, "refresh.ms=-1: it must not be negative"),
        ({"sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "10001"}, "backoff.max.ms=10000 is less than"),
        ({"sasl.oauthbearer.sub.claim.name": ""}, "sub.claim.name is empty"),
        ({f"{OF_CLIENTS}sasl.oauthbearer.clock.skew.seconds": "x"}, "Invalid value x for configuration"),
        (
            {"inter.broker.listener.name": "CLIENTS", "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"},
            "checks tokens of clients, but cannot fetch one for itself; use one of PLAIN, SCRAM",
        ),
        (
            {
                "process.roles": "broker",
                "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
                "listener.security.protocol.map": "IN:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
                "sasl.mechanism.controller.protocol": "OAUTHBEARER",
            },
            "sasl.mechanism.controller.protocol=OAUTHBEARER is not served",
        ),
    ],
)
def test_unsupported_settings_are_refused_with_the_reason(settings: dict[str, str | None], said: str) -> None:
    texts = {name: text for name, text in {**SIGNED, **settings}.items() if text is not None}
    with pytest.raises(ConfigError, match=said) as refused:
        parse_config(texts)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("setting", ["jwks.endpoint.url", "expected.audience", "expected.issuer"])
@pytest.mark.parametrize("prefix", ["", "listener.name.clients.", OF_CLIENTS])
def test_a_requested_check_is_never_ignored(setting: str, prefix: str) -> None:
    """Apache Kafka accepts any token in that case. The setting may be in a file whose listeners have no OAUTHBEARER."""
    name = f"{prefix}sasl.oauthbearer.{setting}"
    with pytest.raises(ConfigError, match=f"{setting} is set but would not be checked"):
        parse_config({**UNSECURED, name: "http://x/y"})
    parse_config({name: "http://x/y"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ('unsecuredValidatorAllowableClockSkewMs="-1"', "must be a number of milliseconds"),
        ('unsecuredValidatorAllowableClockSkewMs="2147483648"', "must be a number of milliseconds"),
        ('unsecuredValidatorAllowableClockSkewMs="1s"', "must be a number of milliseconds"),
        ('unsecuredValidatorRequiredScope="a \\"b"', "must be words of ASCII without quotes"),
    ],
)
def test_wrong_options_stop_the_start(options: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config(with_options(options))


def test_the_command_line_does_not_log_in_with_tokens() -> None:
    with pytest.raises(ConfigError, match=r"sasl\.mechanism=OAUTHBEARER is not served: kpybroker checks tokens"):
        login_of({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"})


@given(st.text(max_size=40) | st.from_regex(r"https?://[\x21-\x7e]{0,40}", fullmatch=True))
def test_any_url_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        url = parse_url(text)
        assert parse_url(str(url)) == url
        with contextlib.suppress(ValueError):
            assert url.followed(text)
