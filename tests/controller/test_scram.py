"""AlterUserScramCredentials: valid credentials are set and removed, and others are refused. tests/golden has Kafka's
responses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.controller import scram
from kpybroker.controller.scram_commands import AlterUserScramCredentials, ScramDeletion, ScramUpsertion
from kpybroker.errors import ErrorCode
from kpybroker.raft.log.metadata_log import BATCH_LIMIT_BYTES
from kpybroker.wire.stored import metadata as stored
from tests.controller.stage import Stage

SECRET = b"a salted password"


def upsertion(user: str, mechanism: int = 1, **values: bytes) -> ScramUpsertion:
    return ScramUpsertion(user, mechanism, 4096, values.get("salt", b"grains"), values.get("password", SECRET))


def alter(*changes: ScramUpsertion | ScramDeletion) -> AlterUserScramCredentials:
    return AlterUserScramCredentials(
        tuple(each for each in changes if isinstance(each, ScramDeletion)),
        tuple(each for each in changes if isinstance(each, ScramUpsertion)),
    )


def codes(stage: Stage, *changes: ScramUpsertion | ScramDeletion) -> dict[str, ErrorCode]:
    return {result.user: result.error_code for result in stage.ask(alter(*changes))}


def test_there_is_a_limit_of_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram, "CREDENTIALS_MAX", 2)
    stage = Stage()
    full = ErrorCode.POLICY_VIOLATION
    assert codes(stage, upsertion("a"), upsertion("a", 2), upsertion("b"), upsertion("c"), upsertion("d")) == {
        "a": ErrorCode.DUPLICATE_RESOURCE,
        "b": 0,
        "c": 0,
        "d": full,
    }
    assert codes(stage, upsertion("b", 2), upsertion("c")) == {"b": full, "c": 0}
    assert codes(stage, ScramDeletion("b", 1)) == {"b": 0}
    assert codes(stage, upsertion("d")) == {"d": 0}
    assert sorted(stage.image().scram_credentials) == ["c", "d"]


@pytest.mark.parametrize(("length", "code"), [(1024, 0), (1025, ErrorCode.UNACCEPTABLE_CREDENTIAL)])
def test_names_and_salts_have_limits(length: int, code: int) -> None:
    stage = Stage()
    assert list(codes(stage, upsertion("x" * length)).values()) == [code]
    assert codes(stage, upsertion("a", salt=b"s" * length)) == {"a": code}


def test_the_largest_request_is_one_batch_of_the_log() -> None:
    stage = Stage()
    largest = [upsertion(chr(0x10000 + number) * 1024, salt=b"s" * 1024) for number in range(1000)]
    assert set(codes(stage, *largest).values()) == {ErrorCode.NONE}
    assert len(stage.image().scram_credentials) == 1000
    assert sum(len(stored.frame_record(each.message)) for each in stage.log) < BATCH_LIMIT_BYTES


def test_credentials_are_not_shown() -> None:
    stage = Stage()
    command = alter(upsertion("a", salt=b"salt"))
    stage.ask(command)
    shown = repr(command) + repr(stage.image().scram_credentials) + repr(stage.state)
    [credential] = stage.image().scram_credentials["a"].values()
    for secret in (SECRET, b"salt", credential.stored_key, credential.server_key):
        assert repr(secret) not in shown


def credentials(stage: Stage) -> set[tuple[str, int]]:
    return {(user, mechanism) for user, each in stage.state.scram_credentials.items() for mechanism in each}


USERS = st.sampled_from(["a", "b", "c", ""])
MECHANISMS = st.integers(0, 3)
CHANGES = st.one_of(
    st.builds(ScramDeletion, USERS, MECHANISMS),
    st.builds(ScramUpsertion, USERS, MECHANISMS, st.sampled_from([4095, 4096, 16385]), st.just(b"s"), st.just(b"p")),
)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(CHANGES, max_size=4)))
def test_replaying_the_records_gives_the_same_credentials(requests: list[list[ScramDeletion | ScramUpsertion]]) -> None:
    stage = Stage()
    for changes in requests:
        before = credentials(stage)
        told = stage.ask(alter(*changes))
        assert sorted(result.user for result in told) == sorted({change.user for change in changes})
        taken = {result.user for result in told if result.error_code is ErrorCode.NONE}
        assert {user for user, _ in before ^ credentials(stage)} <= taken
        for change in changes:
            if change.user in taken:
                is_there = (change.user, change.mechanism) in credentials(stage)
                assert is_there == isinstance(change, ScramUpsertion)
    assert stage.replayed() == stage.state
    assert stage.image().scram_credentials == stage.state.scram_credentials
