"""The settings of a listener with OAUTHBEARER, which say which tokens are valid (KIP-255, KIP-768).

Without a callback handler, tokens are unsecured, as in Apache Kafka: anyone can create one. With Kafka's own handler
for signed tokens, an identity provider signs the tokens, and the listener has the provider's public keys.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kpybroker.config.http_url import HttpUrl, parse_url
from kpybroker.config.jaas import OAUTHBEARER, Jaas
from kpybroker.config.key import LIMITS, Value
from kpybroker.errors import ConfigError

HANDLER = "sasl.server.callback.handler.class"
HANDLER_OF_SIGNED = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
KEYS_URL = "sasl.oauthbearer.jwks.endpoint.url"
REFRESH, BACKOFF, BACKOFF_MAX = (
    f"sasl.oauthbearer.jwks.endpoint.{name}" for name in ("refresh.ms", "retry.backoff.ms", "retry.backoff.max.ms")
)
AUDIENCE, ISSUER = "sasl.oauthbearer.expected.audience", "sasl.oauthbearer.expected.issuer"
SCOPE_CLAIM, SUB_CLAIM = "sasl.oauthbearer.scope.claim.name", "sasl.oauthbearer.sub.claim.name"
OF_SIGNED = (KEYS_URL, AUDIENCE, ISSUER)
"""Settings of checks that are not made for unsecured tokens."""
OPTION = "unsecuredValidator"
FILE = re.compile("file:(//[^/]*)?", re.IGNORECASE)
"""The prefix of a file URL."""
SCOPE_ITEM = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
DAYS_MAX_MS = 366 * 86_400_000
"""The longest interval, one year, because a timer must be able to wait for it."""


class UnsecuredTokens(NamedTuple):
    """Unsecured tokens, for development: nobody signs them, so a client may claim any name."""

    principal_claim: str = "sub"
    scope_claim: str = "scope"
    required_scope: tuple[str, ...] = ()
    clock_skew_ms: int = 0


class KeysFile(NamedTuple):
    """The public keys are in a file, which is read again when it changes."""

    path: str


class KeysUrl(NamedTuple):
    """The public keys are at a URL. `tls` are the options `ssl.*` of the JAAS text, by name; they are never logged."""

    url: HttpUrl
    refresh_ms: int
    backoff_ms: int
    backoff_max_ms: int
    tls: Mapping[str, str]

    def __repr__(self) -> str:
        return f"KeysUrl({self.url})"


class SignedTokens(NamedTuple):
    """Tokens that an identity provider signs. If `audiences` is empty, a token must not name an audience."""

    keys: KeysFile | KeysUrl
    audiences: tuple[str, ...]
    issuer: str | None
    clock_skew_seconds: int
    scope_claim: str
    sub_claim: str


TokenRules = UnsecuredTokens | SignedTokens


def token_rules(listener: str, handler: str | None, jaas: Jaas, value: Callable[[str], Value]) -> TokenRules:
    """The rules of a listener. `value` returns a setting of the listener by its name without prefix. Raises
    ConfigError."""
    if handler is not None:
        return _signed(listener, jaas, value)
    for setting in OF_SIGNED:
        if value(setting):
            raise ConfigError(
                f"listener {listener}: {setting} is set but would not be checked: Apache Kafka accepts "
                f"unsecured tokens unless listener.name.{listener.lower()}.{OAUTHBEARER.lower()}.{HANDLER} is "
                f"{HANDLER_OF_SIGNED}; set that, or remove {setting}"
            )
    return _unsecured(listener, jaas)


def check_handlers(texts: Mapping[str, str]) -> None:
    """Raise ConfigError for a callback handler other than Kafka's own for signed tokens, or for one that is set where
    it has no effect."""
    for name, text in texts.items():
        if not name.endswith(HANDLER) or not text.strip():
            continue
        if not (name.startswith("listener.name.") and name.endswith(f".{OAUTHBEARER.lower()}.{HANDLER}")):
            raise ConfigError(
                f"{name}={text} cannot be applied: Java classes are not run; remove the setting, and give the users of "
                f"PLAIN in sasl.jaas.config. Only listener.name.<listener>.{OAUTHBEARER.lower()}.{HANDLER} may be set"
            )
        if text.strip() != HANDLER_OF_SIGNED:
            raise ConfigError(
                f"{name}={text} cannot be applied: Java classes are not run; write {HANDLER_OF_SIGNED} for signed "
                "tokens, or remove the setting for unsecured ones"
            )


def _unsecured(listener: str, jaas: Jaas) -> UnsecuredTokens:
    options = {name: text.strip() for name, text in jaas.options.items() if text.strip()}
    skew = options.get(f"{OPTION}AllowableClockSkewMs", "0")
    if not (skew.isascii() and skew.isdigit() and len(skew) < 11 and int(skew) <= LIMITS["INT"][1]):
        raise ConfigError(f"listener {listener}: {OPTION}AllowableClockSkewMs must be a number of milliseconds")
    scope = tuple(filter(None, options.get(f"{OPTION}RequiredScope", "").split(" ")))
    if not all(SCOPE_ITEM.fullmatch(item) for item in scope):
        raise ConfigError(f"listener {listener}: {OPTION}RequiredScope must be words of ASCII without quotes")
    return UnsecuredTokens(
        options.get(f"{OPTION}PrincipalClaimName", "sub"),
        options.get(f"{OPTION}ScopeClaimName", "scope"),
        scope,
        int(skew),
    )


def _signed(listener: str, jaas: Jaas, value: Callable[[str], Value]) -> SignedTokens:
    def text(setting: str) -> str:
        return str(value(setting) or "").strip()

    def claim(setting: str) -> str:
        if not text(setting):
            raise ConfigError(f"listener {listener}: {setting} is empty; name a claim, or omit the setting")
        return text(setting)

    audiences, skew = value(AUDIENCE), value("sasl.oauthbearer.clock.skew.seconds")
    assert isinstance(audiences, tuple)
    assert isinstance(skew, int)
    return SignedTokens(
        _keys(listener, text(KEYS_URL), jaas, value),
        audiences,
        text(ISSUER) or None,
        skew,
        claim(SCOPE_CLAIM),
        claim(SUB_CLAIM),
    )


def _keys(listener: str, url: str, jaas: Jaas, value: Callable[[str], Value]) -> KeysFile | KeysUrl:
    said = f"listener {listener}: {KEYS_URL}"
    if not url:
        raise ConfigError(f"{said} is not set; it must name the public keys of the identity provider")
    if url[:5].lower() == "file:":
        path = FILE.sub("", url, count=1)  # not decoded, as in Apache Kafka, which leaves %20 unchanged
        if not path.startswith("/"):
            raise ConfigError(f"{said}={url}: a file needs its whole path; write file:///path/to/keys.json")
        return KeysFile(path.removeprefix("/") if sys.platform == "win32" else path)  # file:///C:/keys.json
    try:
        parsed = parse_url(url)
    except ValueError as error:
        raise ConfigError(f"{said}: {error}; write file:///path, http://host/path or https://host/path") from None
    refresh_ms, backoff_ms, backoff_max_ms = (
        _interval(listener, name, value) for name in (REFRESH, BACKOFF, BACKOFF_MAX)
    )
    if refresh_ms == 0:
        raise ConfigError(f"listener {listener}: {REFRESH}=0: it must be at least 1")
    if backoff_max_ms < backoff_ms:
        raise ConfigError(f"listener {listener}: {BACKOFF_MAX}={backoff_max_ms} is less than {BACKOFF}={backoff_ms}")
    tls = {name: text for name, text in jaas.options.items() if name.startswith("ssl.")}
    return KeysUrl(parsed, refresh_ms, backoff_ms, backoff_max_ms, tls)


def _interval(listener: str, setting: str, value: Callable[[str], Value]) -> int:
    found = value(setting)
    assert isinstance(found, int)
    if found < 0:
        raise ConfigError(f"listener {listener}: {setting}={found}: it must not be negative")
    return min(found, DAYS_MAX_MS)
