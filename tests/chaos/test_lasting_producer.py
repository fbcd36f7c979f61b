"""Tests what a chaos run makes of a fatal error of librdkafka: its producer goes on, and the cause is judged."""

from __future__ import annotations

from collections.abc import Callable

from chaos.check import Kind
from chaos.history import UNKNOWN, History, Place
from chaos.librdkafka import Production
from chaos.run import of_falls
from kpybroker.testing import Cluster
from kpybroker.testing.waiting import becomes_true
from oracle.takeover import KAFKA, KPYBROKER

PATIENCE_S = 60.0
FALL = "producer 1: ProduceRequest for t [0] failed due to sequence desynchronization with broker 2 (PID{Id:0,Epoch:0})"


def test_a_producer_goes_on_after_a_fatal_error(kpybroker: Cluster) -> None:
    place, history = Place(kpybroker.topic(), 0), History()
    production = Production(history, kpybroker.bootstrap, [place], 1, 500.0, {})

    def acknowledges(after: int) -> Callable[[float], bool]:
        return lambda _: any(offset != UNKNOWN for offset in history.acked.get((place, 1), [])[after:])

    assert becomes_true(acknowledges(0), PATIENCE_S)
    with kpybroker.fault("Produce", topic=place.topic, error="OUT_OF_ORDER_SEQUENCE_NUMBER", times=1) as fault:
        fault.wait_hit()
        assert becomes_true(lambda _: bool(history.falls), PATIENCE_S)
    assert becomes_true(acknowledges(len(history.acked[place, 1])), PATIENCE_S)
    production.finish(30)
    assert not history.incidents
    assert UNKNOWN in history.acked[place, 1]
    (text,) = history.falls
    assert of_falls([text], {1: KAFKA}) == (1, [])
    assert [one.kind for one in of_falls([text], {1: KPYBROKER})[1]] == [Kind.INCIDENT]


def test_only_a_sequence_number_that_apache_kafka_refused_explains_a_fatal_error() -> None:
    kinds = {1: KPYBROKER, 2: KAFKA}
    other = "producer 1: broker 2 has fenced the producer"
    assert of_falls([FALL], kinds) == (1, [])
    number, found = of_falls([FALL, FALL.replace("broker 2", "broker 1"), other], kinds)
    assert (number, [one.kind for one in found]) == (1, [Kind.INCIDENT, Kind.INCIDENT])
