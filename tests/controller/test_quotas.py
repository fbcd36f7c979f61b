"""AlterClientQuotas: valid quotas are set for their entities, and others are refused. tests/golden has further
responses, recorded on Apache Kafka."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.controller import quotas
from kpybroker.controller.commands import AlterClientQuotas, QuotaChange, QuotaResult
from kpybroker.errors import ErrorCode
from kpybroker.metadata.quotas import Entity
from tests.controller.stage import Stage

ANN: Entity = (("user", "ann"),)
REFUSED = ErrorCode.INVALID_REQUEST


def change(entity: Entity, **values: float | None) -> QuotaChange:
    return QuotaChange(entity, tuple(values.items()))


def alter(*changes: QuotaChange, validate_only: bool = False) -> AlterClientQuotas:
    return AlterClientQuotas(changes, validate_only)


def test_quotas_are_set_changed_and_removed() -> None:
    stage = Stage()
    assert stage.one(alter(change(ANN, producer_byte_rate=5.0, consumer_byte_rate=6.0))) == QuotaResult(ANN)
    assert stage.state.quotas == {ANN: {"producer_byte_rate": 5.0, "consumer_byte_rate": 6.0}}
    stage.ask(alter(change(ANN, producer_byte_rate=7.0, consumer_byte_rate=None)))
    assert stage.state.quotas == {ANN: {"producer_byte_rate": 7.0}} == stage.image().quotas
    stage.ask(alter(change(ANN, producer_byte_rate=None)))
    assert stage.state.quotas == {}
    assert stage.image().quotas == {}


def test_an_unchanged_quota_writes_nothing() -> None:
    stage = Stage()
    stage.ask(alter(change(ANN, producer_byte_rate=5.0)))
    before = len(stage.log)
    stage.ask(alter(change(ANN, producer_byte_rate=5.0, request_percentage=None)))
    stage.ask(alter(change(ANN, producer_byte_rate=6.0), validate_only=True))
    assert len(stage.log) == before


def test_the_order_of_an_entitys_parts_does_not_matter() -> None:
    stage = Stage()
    both = (("user", "ann"), ("client-id", None))
    stage.ask(alter(change(both, producer_byte_rate=5.0)))
    stage.ask(alter(change(both[::-1], producer_byte_rate=None)))
    assert stage.state.quotas == {}


@pytest.mark.parametrize(
    "value", [math.nan, -math.inf, 0.0, -0.0, -1.0, 0.5, 1.000002, 2.0**64, math.inf], ids=lambda value: f"{value!r}"
)
def test_a_rate_of_bytes_is_a_whole_number_above_zero(value: float) -> None:
    assert Stage().code(alter(change(ANN, producer_byte_rate=value)))[0] is REFUSED


@pytest.mark.parametrize("value", [0.001, 12.5, 1e300])
def test_a_percentage_may_be_any_number_above_zero(value: float) -> None:
    stage = Stage()
    assert stage.code(alter(change(ANN, request_percentage=value)))[0] is ErrorCode.NONE
    assert stage.state.quotas[ANN] == {"request_percentage": value}


@pytest.mark.parametrize("address", ["10.0.0.300", "localhost", "10.0.0.1/8"])
def test_connections_are_counted_by_address(address: str) -> None:
    stage = Stage()
    assert stage.code(alter(change((("ip", address),), connection_creation_rate=5.0)))[0] is REFUSED
    for good in ("10.0.0.1", "::1", None):
        assert stage.code(alter(change((("ip", good),), connection_creation_rate=5.0)))[0] is ErrorCode.NONE


def test_there_is_a_limit_of_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "ENTITIES_MAX", 2)
    stage = Stage()
    three = [change((("user", name),), producer_byte_rate=5.0) for name in ("a", "b", "c")]
    codes = [result.error_code for result in stage.ask(alter(*three))]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    stage.ask(alter(change((("user", "a"),), producer_byte_rate=None)))
    assert stage.code(alter(three[2]))[0] is ErrorCode.NONE
    assert stage.code(alter(change((("user", "x" * 2000),), producer_byte_rate=5.0)))[0] is REFUSED


NAMES = st.sampled_from([None, "a", "b", ""])
ENTITIES = st.lists(st.tuples(st.sampled_from(["user", "client-id", "ip", "group"]), NAMES), max_size=3).map(tuple)
VALUES = st.sampled_from([None, 0.0, 0.5, 1.0, 2.0])
KEYS = st.sampled_from(["producer_byte_rate", "request_percentage", "connection_creation_rate", "unknown"])
CHANGES = st.builds(QuotaChange, ENTITIES, st.lists(st.tuples(KEYS, VALUES), max_size=3).map(tuple))


@pytest.mark.slow
@given(st.lists(st.lists(CHANGES, max_size=4)))
def test_replaying_the_records_gives_the_same_quotas(requests: list[list[QuotaChange]]) -> None:
    stage = Stage()
    for changes in requests:
        before = dict(stage.state.quotas)
        results = stage.ask(alter(*changes))
        named = {result.entity for result in results}
        assert len(named) == len(results)
        untouched = before.keys() - named
        assert {entity: stage.state.quotas.get(entity) for entity in untouched} == {
            entity: before[entity] for entity in untouched
        }
    assert stage.replayed() == stage.state
    assert stage.image().quotas == stage.state.quotas
    assert all(value > 0 for values in stage.state.quotas.values() for value in values.values())
