"""Tests which quota applies to a client, which clients share a quota, and which meters are dropped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.config import parse_config
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.quotas import Entity, Quotas
from kpybroker.quotas.clients import ClientQuotas
from kpybroker.quotas.limits import ANONYMOUS, applying
from kpybroker.quotas.meters import IDLE_MS, METERS_MAX, Meters
from kpybroker.quotas.rate import Rate
from kpybroker.wire.api import by_name

pytestmark = pytest.mark.slow

BYTES = "producer_byte_rate"
ME = "me"
IN_KAFKAS_ORDER: list[Entity] = [
    (("client-id", ME), ("user", ANONYMOUS)),
    (("client-id", None), ("user", ANONYMOUS)),
    (("user", ANONYMOUS),),
    (("client-id", ME), ("user", None)),
    (("client-id", None), ("user", None)),
    (("user", None),),
    (("client-id", ME),),
    (("client-id", None),),
]
"""The order of precedence: the first of these that has a quota applies (KIP-55)."""
OTHERS: list[Entity] = [
    (("user", "ann"),),
    (("client-id", "you"),),
    (("client-id", ME), ("user", "ann")),
    (("ip", ME),),
]


@given(st.sets(st.sampled_from([*IN_KAFKAS_ORDER, *OTHERS])))
def test_the_first_in_kafkas_order_applies(entities: set[Entity]) -> None:
    limits = {entity: float(number) for number, entity in enumerate(entities)}
    found = applying(limits, ANONYMOUS, ME)
    first = next((entity for entity in IN_KAFKAS_ORDER if entity in limits), None)
    if first is None:
        assert found is None
        return
    assert found is not None
    assert found.limit == limits[first]
    kinds = {kind for kind, _ in first}
    assert (found.user, found.client_id) == (ANONYMOUS if "user" in kinds else "", ME if "client-id" in kinds else "")


class Clock:
    def __init__(self) -> None:
        self.ms = 1000

    def __call__(self) -> int:
        return self.ms


def quotas_of(quotas: Quotas, clock: Clock | None = None, **settings: str) -> ClientQuotas:
    config = parse_config({name.replace("_", "."): value for name, value in settings.items()})
    found = ClientQuotas(config, clock or Clock())
    found.follow(quotas)
    return found


def test_clients_of_one_user_share_its_quota_and_clients_with_one_id_theirs() -> None:
    user = quotas_of({(("user", None),): {BYTES: 1000.0}})
    assert user.charge(BYTES, "a", 10_000) == 0
    assert user.charge(BYTES, "b", 1) > 0
    each = quotas_of({(("client-id", None),): {BYTES: 1000.0}})
    assert each.charge(BYTES, "a", 10_000) == each.charge(BYTES, "b", 10_000) == 0
    assert each.charge(BYTES, "a", 1) > 0
    nameless = quotas_of({(("client-id", None),): {BYTES: 1000.0}})
    assert nameless.charge(BYTES, None, 20_000) > 0, "a missing client id counts as the empty one"


def test_users_have_their_own_quotas() -> None:
    """The user of the login counts. A quota of a user and a client id takes precedence over the user's quota."""
    quotas = quotas_of(
        {
            (("user", "ann"),): {BYTES: 1000.0},
            (("client-id", "slow"), ("user", "ann")): {BYTES: 1.0},
            (("user", None),): {BYTES: 1e9},
        }
    )
    assert quotas.charge(BYTES, "a", 20_000, "ann") > 0
    assert quotas.charge(BYTES, "a", 20_000, "bob") == 0
    assert quotas.charge(BYTES, "a", 20_000) == 0, "ANONYMOUS"
    assert quotas.charge(BYTES, "slow", 20, "ann") > quotas.charge(BYTES, "slow", 20, "bob") == 0
    assert quotas.most_at_once(BYTES, "a", "ann") == 10_000
    quotas.take_back(BYTES, "a", 20_000, "ann")
    assert quotas.charge(BYTES, "a", 1, "ann") == 0


def test_other_kinds_and_other_clients_are_not_charged() -> None:
    quotas = quotas_of({(("client-id", "a"),): {BYTES: 1.0}})
    assert quotas.charge(BYTES, "b", 1e9) == quotas.charge("consumer_byte_rate", "a", 1e9) == 0
    assert (quotas.of_requests, quotas.has(BYTES), quotas.has("consumer_byte_rate")) == (True, True, False)
    assert not quotas_of({(("ip", None),): {"connection_creation_rate": 1.0}}).of_requests


def test_earlier_usage_counts_when_the_quota_changes() -> None:
    quotas = quotas_of({(("client-id", None),): {BYTES: 1000.0}})
    assert quotas.charge(BYTES, "a", 10_000) == 0
    quotas.follow({(("client-id", "a"),): {BYTES: 500.0}})
    assert quotas.charge(BYTES, "a", 0) == 10_000, "twice what is allowed in ten seconds: once more as long"


def test_a_percentage_delays_no_client_longer_than_a_window() -> None:
    quotas = quotas_of({(("client-id", None),): {"request_percentage": 0.001}}, quota_window_size_seconds="2")
    assert quotas.charge("request_percentage", "a", 1e6) == 2000


def test_usage_that_is_taken_back_does_not_count() -> None:
    quotas = quotas_of({(("client-id", None),): {BYTES: 1000.0}})
    assert quotas.charge(BYTES, "a", 20_000) > 0
    quotas.take_back(BYTES, "a", 20_000)
    assert quotas.charge(BYTES, "a", 10_000) == 0


@pytest.mark.parametrize(("api", "last_lenient"), [("CreateTopics", 5), ("DeleteTopics", 4), ("CreatePartitions", 2)])
def test_old_clients_are_throttled_and_new_ones_refused(api: str, last_lenient: int) -> None:
    clock = Clock()
    quotas = quotas_of({(("user", None),): {"controller_mutation_rate": 2.0}}, clock)
    strict = quotas.mutations(by_name[api], last_lenient + 1, "a")
    strict.take(32)  # of 22
    assert strict.wait_ms == 0, "the request that exceeds the quota is accepted"
    with pytest.raises(KafkaError) as refused:
        strict.take(1)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert strict.wait_ms == 5000
    lenient = quotas.mutations(by_name[api], last_lenient, "b")
    lenient.take(1)
    assert lenient.wait_ms == 5500
    clock.ms += 5500
    assert lenient.wait_ms == 0
    quotas.mutations(by_name[api], last_lenient + 1, "c").take(1)


def test_connections_of_an_address() -> None:
    clock = Clock()
    quotas = quotas_of(
        {
            (("ip", None),): {"connection_creation_rate": 2.0},
            (("ip", "0:0:0:0:0:0:0:1"),): {"connection_creation_rate": 1.0},
            (("ip", "a.host"),): {"connection_creation_rate": 1.0},
        },
        clock,
    )
    assert [quotas.connected("10.0.0.1") > 0 for _ in range(21)] == [False] * 20 + [True]
    assert quotas.connected("10.0.0.1") <= 1000, "a window at most"
    assert [quotas.connected("::1") > 0 for _ in range(11)] == [False] * 10 + [True]
    assert quotas.connected("10.0.0.2") == 0, "each has a quota of its own"
    clock.ms += 1000
    assert quotas.connected("10.0.0.1") > 0
    clock.ms += 10_500
    assert quotas.connected("10.0.0.1") == 0, "a refused connection does not count"


def test_the_number_of_meters_is_limited_and_idle_ones_are_dropped() -> None:
    meters: Meters[Rate] = Meters(lambda: Rate(ClientQuotas(parse_config({}), Clock()).windows))
    keys = itertools.count()

    def fresh() -> Iterator[tuple[str, str, str]]:
        return ((BYTES, "", str(next(keys))) for _ in itertools.repeat(None))

    new = fresh()
    first = next(new)
    kept = meters.at(first, 0)
    for key in itertools.islice(new, METERS_MAX - 1):
        meters.at(key, 1)
    assert meters.at(first, 2) is kept
    assert len(meters) == METERS_MAX
    for key in itertools.islice(new, 50):
        meters.at(key, 3)
    assert len(meters) == METERS_MAX
    assert meters.at(first, 3) is kept, "the longest idle ones went"
    meters.at(next(new), 3 + IDLE_MS)
    assert len(meters) == 1


def test_unchanged_quotas_reset_nothing() -> None:
    told: list[bool] = []
    quotas: Quotas = {(("client-id", None),): {BYTES: 1000.0}}
    found = quotas_of({})
    found.on_change(lambda: told.append(found.of_requests))
    for each in (quotas, quotas, {}):
        found.follow(each)
    assert told == [True, False]
