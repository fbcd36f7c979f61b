"""Mutants that accept logins or serve requests that must be refused: sessions, tokens, ACLs, forwarded requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from kpybroker.broker import envelopes
from kpybroker.call import Answers
from kpybroker.security import acls
from kpybroker.security.acls import Acl
from kpybroker.security.delegation_tokens import DelegationToken
from kpybroker.security.principal import Principal, encode_principal
from kpybroker.security.sasl import plain
from kpybroker.security.sasl.scram import ScramExchange
from kpybroker.security.sasl.session import LoginSession, Verdict
from kpybroker.security.sasl.unsecured_tokens import UnsecuredCheck
from kpybroker.security.scram import ScramCredential
from kpybroker.security.standard_authorizer import StandardAuthorizer
from kpybroker.server.connections.connection import Connection
from kpybroker.sim.cluster.secured import NODE
from kpybroker.sim.mutants.mutant import Mutant, Patch, force

ACTOR = ("principals",)
NODES = ("crash", "pause", "partition", "isolate", "slow_node")
OF_IMAGE = 6
"""The number of elements in the key of a cached Metadata response that do not depend on the caller."""


def _never_ends(during_session: Callable[..., Verdict]) -> Callable[..., Verdict]:
    def served(session: LoginSession, frame: memoryview) -> Verdict:
        force(session, ends_ms=session._now_ms())
        return during_session(session, frame)

    return served


def _anybody(complete: Callable[..., None]) -> Callable[..., None]:
    def taken(session: LoginSession, principal: Principal, valid_ms: int | None) -> None:
        if session._logged_in_with is not None:
            force(session, principal=principal)
        complete(session, principal, valid_ms)

    return taken


def _stays_the_same(connection: Connection, principal: Principal) -> None:
    force(connection, principal=principal)


def _keeps_verdicts(follow: Callable[..., None]) -> Callable[..., None]:
    def forgetful(authorizer: StandardAuthorizer, now: Mapping[bytes, Acl], topics: Mapping[str, str]) -> None:
        verdicts, grants = dict(authorizer._verdicts), authorizer.grants
        follow(authorizer, now, topics)
        authorizer._verdicts.update(verdicts)
        force(authorizer, grants=grants or authorizer.grants)

    return forgetful


_remembered: dict[tuple[bytes, int, str], ScramCredential] = {}
"""Credentials by the secret of the listener, the mechanism and the user."""


def _remembers(find: Callable[..., ScramCredential | None]) -> Callable[..., ScramCredential | None]:
    def found(exchange: ScramExchange, name: str, *, by_token: bool) -> ScramCredential | None:
        credential = find(exchange, name, by_token=by_token)
        if by_token:
            return credential
        key = exchange._secret, exchange._mechanism, name
        if credential is not None:
            _remembered[key] = credential
        elif key in _remembered:
            force(exchange, _login=(Principal("User", name), None))
        return credential or _remembered.get(key)

    return found


def _believes(check: UnsecuredCheck, claims: dict[str, Any], now_ms: int) -> float:
    return max(float(claims["exp"]), now_ms / 1000 + 60)


_get, _keep = Answers.get, Answers.keep


def _of_nobody(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return key[:OF_IMAGE]


PRINCIPALS = (
    Mutant(
        "a session is served after its end",
        (Patch(LoginSession, "_during_session", _never_ends(LoginSession._during_session)),),
        NODES,
        brokers=3,
        actors=ACTOR,
    ),
    Mutant(
        "a session is renewed as another principal",
        (Patch(LoginSession, "_complete", _anybody(LoginSession._complete)),),
        NODES,
        brokers=3,
        actors=ACTOR,
    ),
    Mutant(
        "after a renewed login, requests have the principal of the old one",
        (Patch(Connection, "log_in", _stays_the_same),),
        ("crash",),
        actors=ACTOR,
    ),
    Mutant(
        "decisions stay cached when ACLs change",
        (Patch(StandardAuthorizer, "follow", _keeps_verdicts(StandardAuthorizer.follow)),),
        NODES,
        brokers=3,
        actors=ACTOR,
    ),
    Mutant(
        "an ACL with DENY denies nothing",
        (Patch(acls, "DENYING", dict.fromkeys(acls.DENYING, 0)),),
        NODES,
        brokers=3,
        actors=ACTOR,
    ),
    Mutant(
        "a delegation token is accepted after it has expired",
        (Patch(DelegationToken, "has_expired", lambda *_: False),),
        NODES,
        brokers=3,
        actors=ACTOR,
    ),
    Mutant(
        "an OAUTHBEARER token is accepted after it has expired",
        (Patch(UnsecuredCheck, "_check_times", _believes),),
        ("crash",),
        actors=ACTOR,
    ),
    Mutant(
        "a forwarded request is authorized as the broker's own",
        (Patch(envelopes, "encode_principal", lambda _: encode_principal(Principal("User", NODE))),),
        NODES,
        brokers=3,
        actors=ACTOR,
    ),
    Mutant(
        "a removed SCRAM user can log in",
        (Patch(ScramExchange, "_find", _remembers(ScramExchange._find)),),
        NODES,
        brokers=3,
        actors=ACTOR,
    ),
    Mutant(
        "any PLAIN password is accepted",
        (Patch(plain, "hmac", SimpleNamespace(compare_digest=lambda *_: True)),),
        ("crash",),
        actors=ACTOR,
    ),
    Mutant(
        "a cached Metadata response is sent to another principal",
        (
            Patch(Answers, "get", lambda answers, key: _get(answers, _of_nobody(key))),
            Patch(Answers, "keep", lambda answers, key, *rest: _keep(answers, _of_nobody(key), *rest)),
        ),
        NODES,
        brokers=3,
        actors=ACTOR,
    ),
)
