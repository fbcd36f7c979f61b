"""The token checks of a node's OAUTHBEARER listeners. They are created, and their keys loaded, before the node
serves."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from kpybroker.config import BrokerConfig
from kpybroker.config.oauth_settings import AUDIENCE, ISSUER, KeysFile, KeysUrl, SignedTokens, UnsecuredTokens
from kpybroker.errors import ConfigError
from kpybroker.security.sasl.bearer_tokens import TokenCheck
from kpybroker.security.sasl.http_get import http_get
from kpybroker.security.sasl.key_sets import check_library
from kpybroker.security.sasl.refreshing_keys import FileKeys, UrlKeys
from kpybroker.security.sasl.signed_tokens import SignedCheck
from kpybroker.security.sasl.unsecured_tokens import UnsecuredCheck
from kpybroker.security.tls.contexts import dialing_context
from kpybroker.security.tls.settings import client_tls_settings
from kpybroker.world import World

log = logging.getLogger(__name__)


class ListenerTokens(NamedTuple):
    """The token check of a listener. `follow` is a coroutine function that keeps its keys up to date, or None if it has
    no keys."""

    check: TokenCheck
    follow: Callable[[], Coroutine[Any, Any, None]] | None = None


async def listener_tokens(world: World, config: BrokerConfig) -> dict[str, ListenerTokens]:
    """The token checks by listener name. Raises ConfigError if the library is missing or no keys can be loaded."""
    found = {}
    for name, listener in config.sasl_listeners.items():
        if isinstance(listener.tokens, UnsecuredTokens):
            log.warning("listener %s accepts unsecured tokens: any client can log in under any name", name)
            found[name] = ListenerTokens(UnsecuredCheck(listener.tokens, world.wall_ms))
        elif listener.tokens is not None:
            found[name] = await _signed(world, name, listener.tokens)
    return found


async def _signed(world: World, name: str, rules: SignedTokens) -> ListenerTokens:
    try:
        check_library()
    except ConfigError as error:
        raise ConfigError(f"listener {name}: {error}") from None
    if not rules.audiences:
        log.warning("listener %s: %s is not set, so only tokens without an audience are accepted", name, AUDIENCE)
    if rules.issuer is None:
        log.warning("listener %s: %s is not set, so tokens of any issuer are accepted", name, ISSUER)
    keys = _keys(world, name, rules.keys)
    await keys.load()
    return ListenerTokens(SignedCheck(rules, keys, world.wall_ms), keys.follow)


def _keys(world: World, name: str, source: KeysFile | KeysUrl) -> FileKeys | UrlKeys:
    if isinstance(source, KeysFile):
        return FileKeys(name, source, world.disk.off_loop)
    return UrlKeys(name, source, _getter(world, name, source), world.steady_ms, world.disk.off_loop)


def _getter(world: World, name: str, source: KeysUrl) -> Callable[[], Awaitable[bytes]]:
    tls = None
    if source.url.scheme == "https":
        try:
            tls = dialing_context(client_tls_settings(source.tls), world.wall_ms(), name)
        except ConfigError as error:
            raise ConfigError(f"listener {name}: the ssl.* options in sasl.jaas.config: {error}") from None
    return partial(http_get, world.network, source.url, tls)
