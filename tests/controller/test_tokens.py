"""Delegation tokens: invariants of any sequence of requests, and the removal of expired tokens.

compat_tests/test_delegation_tokens.py compares each request with Apache Kafka.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.controller import tokens
from kpybroker.controller.commands import Command
from kpybroker.controller.token_commands import CreateDelegationToken, ExpireDelegationToken, RenewDelegationToken
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine.contract import Tick
from kpybroker.metadata.image import Image
from kpybroker.security.delegation_tokens import DelegationToken, token_hmac
from kpybroker.wire.stored import metadata as stored
from tests.controller.stage import Stage

KEY = "a secret of the nodes"
LIFETIME_MS, EXPIRY_MS, INTERVAL_MS = 10_000, 4_000, 3_000
SETTINGS = {
    "delegation_token_secret_key": KEY,
    "delegation_token_max_lifetime_ms": str(LIFETIME_MS),
    "delegation_token_expiry_time_ms": str(EXPIRY_MS),
    "delegation_token_expiry_check_interval_ms": str(INTERVAL_MS),
}
ANN, BOB, CARL = "User:ann", "User:bob", "User:carl"
PERIODS = st.sampled_from([-1, 0, 1, 500, EXPIRY_MS, LIFETIME_MS, (1 << 63) - 1])
USERS = st.sampled_from([ANN, BOB, CARL])
STEPS = st.one_of(
    st.tuples(st.just("create"), USERS, USERS, st.lists(USERS, max_size=2).map(tuple), PERIODS),
    st.tuples(st.sampled_from(["renew", "expire"]), USERS, st.integers(0, 3), PERIODS),
    st.tuples(st.just("wait"), st.integers(1, 5_000)),
)


def stage_of(**settings_: str) -> Stage:
    stage = Stage(0, **{**SETTINGS, **settings_})
    stage.ask(Tick())  # the first command of a Runner
    return stage


def hmac_of(token: DelegationToken) -> bytes:
    return token_hmac(KEY, token.token_id)


def ask(stage: Stage, command: Command) -> Any:
    """The answer to a command, or the error code of its refusal."""
    try:
        return stage.ask(command)
    except KafkaError as refusal:
        return refusal.code


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=15))
def test_any_sequence_of_requests(steps: list[tuple[Any, ...]]) -> None:
    """A replay and a snapshot have the same tokens. Only owners and renewers change a token, and never beyond its
    maximum lifetime. A refused request changes nothing."""
    stage = stage_of()
    made: list[DelegationToken] = []
    for step in steps:
        before = dict(stage.state.delegation_tokens)
        match step:
            case "create", owner, requester, renewers, period_ms:
                token = stage.ask(CreateDelegationToken(requester, owner, renewers, period_ms))
                assert (token.owner, token.requester, token.renewers) == (owner, requester, renewers)
                made.append(token)
            case "wait", ms:
                stage.now_ms += ms
                while (due_ms := stage.machine.deadline_ms()) is not None and due_ms <= stage.now_ms:
                    stage.ask(Tick())
                gone = before.keys() - stage.state.delegation_tokens.keys()
                assert all(before[each].has_expired(stage.now_ms) for each in gone)
            case kind, principal, number, period_ms:
                hmac = hmac_of(made[number]) if number < len(made) else b"of nobody"
                kind_of = RenewDelegationToken if kind == "renew" else ExpireDelegationToken
                told = ask(stage, kind_of(principal, hmac, period_ms))
                check_change(stage, before, made[number] if number < len(made) else None, principal, told)
    now = stage.state.delegation_tokens
    assert all(
        each.issued_ms <= each.expires_ms <= each.max_ms <= each.issued_ms + LIFETIME_MS for each in now.values()
    )
    assert stage.replayed() == stage.state
    image = stage.image()
    assert image.delegation_tokens == now
    frames = [stored.frame_record(record) for record in image.records()]
    assert Image().apply([stored.unframe_record(frame) for frame in frames], 1, 1).delegation_tokens == now


def check_change(
    stage: Stage, before: dict[str, DelegationToken], token: DelegationToken | None, principal: str, told: Any
) -> None:
    after = stage.state.delegation_tokens
    if isinstance(told, ErrorCode):
        assert after == before
        return
    assert token is not None
    assert principal in (token.owner, *token.renewers)
    changed = {each for each in before if after.get(each) != before[each]}
    assert changed <= {token.token_id}
    if token.token_id in after:
        assert after[token.token_id] == before[token.token_id]._replace(expires_ms=told)
        assert told <= token.max_ms


def test_expired_tokens_are_removed_at_each_interval() -> None:
    stage = stage_of()
    began_ms = stage.now_ms
    brief = stage.ask(CreateDelegationToken(ANN, ANN, (), 1))
    long = stage.ask(CreateDelegationToken(ANN, ANN))
    assert stage.machine.deadline_ms() == began_ms + INTERVAL_MS
    stage.now_ms = began_ms + INTERVAL_MS - 1
    stage.ask(Tick())
    assert set(stage.state.delegation_tokens) == {brief.token_id, long.token_id}
    stage.now_ms += 1
    stage.ask(Tick())
    assert set(stage.state.delegation_tokens) == {long.token_id}
    assert stage.machine.deadline_ms() == began_ms + 2 * INTERVAL_MS
    stage.now_ms = began_ms + EXPIRY_MS
    stage.ask(Tick())
    stage.now_ms = long.expires_ms
    stage.ask(Tick())
    assert set(stage.state.delegation_tokens) == {long.token_id}, "valid up to and including this time"
    stage.now_ms = began_ms + 2 * INTERVAL_MS
    stage.ask(Tick())
    assert stage.state.delegation_tokens == {}
    assert stage.records()[-1] == stored.RemoveDelegationTokenRecord(token_id=long.token_id)


def test_many_expired_tokens_are_removed_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "SWEPT_AT_ONCE_MAX", 2)
    stage = stage_of()
    for _ in range(5):
        stage.ask(CreateDelegationToken(ANN, ANN, (), 1))
    stage.now_ms += INTERVAL_MS
    left = []
    while (due_ms := stage.machine.deadline_ms()) is not None and due_ms <= stage.now_ms:
        stage.ask(Tick())
        left.append(len(stage.state.delegation_tokens))
    assert left == [3, 1, 0]


def test_without_a_key_stored_tokens_stay() -> None:
    stage = stage_of()
    token = stage.ask(CreateDelegationToken(ANN, ANN, (), 1))
    without = Stage(0, delegation_token_secret_key="")
    for record in stage.log:
        without.machine.apply(record)
    without.ask(Tick())
    without.now_ms += 100 * INTERVAL_MS
    without.ask(Tick())
    assert token.token_id in without.state.delegation_tokens
    for command in (
        CreateDelegationToken(ANN, ANN),
        RenewDelegationToken(ANN, hmac_of(token)),
        ExpireDelegationToken(ANN, hmac_of(token)),
    ):
        assert ask(without, command) == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def test_a_token_is_found_by_its_hmac_in_every_term() -> None:
    """A new controller has not computed any HMACs yet. A token that was removed is not found, even if its HMAC was
    computed before."""
    stage = stage_of()
    made = [stage.ask(CreateDelegationToken(ANN, ANN)) for _ in range(3)]
    assert stage.ask(RenewDelegationToken(ANN, hmac_of(made[0]))) == stage.now_ms + EXPIRY_MS
    stage.ask(ExpireDelegationToken(ANN, hmac_of(made[0]), -1))
    later = Stage(0, **SETTINGS)
    for record in stage.log:
        later.machine.apply(record)
    for each in (stage, later):
        assert ask(each, RenewDelegationToken(ANN, hmac_of(made[0]))) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        for token in made[1:]:
            assert ask(each, RenewDelegationToken(ANN, hmac_of(token))) == each.now_ms + EXPIRY_MS


def test_there_are_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TOKENS_MAX", 2)
    stage = stage_of()
    for code in (0, 0, ErrorCode.POLICY_VIOLATION):
        told = ask(stage, CreateDelegationToken(ANN, ANN))
        assert (told if isinstance(told, ErrorCode) else 0) == code
    stage.ask(ExpireDelegationToken(ANN, hmac_of(next(iter(stage.state.delegation_tokens.values()))), -1))
    room = tokens.TEXT_MAX - len(ANN) - len("User:")
    assert ask(stage, CreateDelegationToken(ANN, ANN, ("User:" + "x" * (room + 1),))) == ErrorCode.POLICY_VIOLATION
    assert stage.ask(CreateDelegationToken(ANN, ANN, ("User:" + "x" * room,)))


@pytest.mark.parametrize(("owner", "renewer"), [("Group:ann", BOB), (ANN, "user:bob"), (":ann", BOB), (ANN, ":")])
def test_owners_and_renewers_are_users(owner: str, renewer: str) -> None:
    """A login has no principal type. With a token of `Group:ann`, the client would be logged in as `User:ann`."""
    assert ask(stage_of(), CreateDelegationToken(BOB, owner, (renewer,))) == ErrorCode.INVALID_PRINCIPAL_TYPE


def test_secrets_are_not_shown() -> None:
    stage = stage_of()
    token = stage.ask(CreateDelegationToken(ANN, ANN))
    hmac = hmac_of(token)
    commands = [RenewDelegationToken(ANN, hmac), ExpireDelegationToken(ANN, hmac, 5)]
    for command in commands:
        stage.ask(command)
    shown = repr(
        [*commands, token, stage.machine.config, stage.state, stage.image().delegation_tokens, stage.records()]
    )
    assert KEY not in shown
    assert repr(hmac) not in shown
