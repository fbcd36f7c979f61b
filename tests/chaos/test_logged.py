"""Tests that errors of the same cause are counted together, and all others apart."""

from chaos.logged import errors_of
from oracle.takeover import KAFKA, KPYBROKER

REFUSED = """\
[2026-11-28 19:39:53,107] ERROR [ControllerApis nodeId=1] Unexpected error handling request RequestHeader(apiKey=\
BROKER_HEARTBEAT, apiVersion=2, clientId=2, correlationId={correlation_id}) -- BrokerHeartbeatRequestData(brokerId=2)
org.apache.kafka.common.errors.{error}: The active controller appears to be node {node_id}.
\tat kafka.server.ControllerApis.handle(ControllerApis.scala:100)
"""


def test_entries_that_differ_in_numbers_and_ids_are_one_error() -> None:
    output = "".join(
        REFUSED.format(correlation_id=each, error="NotControllerException", node_id=each) for each in (9, 10, 11)
    )
    assert list(errors_of(KAFKA, output).values()) == [3]
    of_ids = [f"2026-11-28 19:37:33,476 ERROR kpybroker.x: no topic {each}" for each in ("aNhYV4jUQoODMza72Fe3kA", 7)]
    assert errors_of(KPYBROKER, "\n".join(of_ids)) == {"kpybroker.x: no topic #": 2}


def test_an_exception_belongs_to_its_entry() -> None:
    output = "".join(
        REFUSED.format(correlation_id=9, error=error, node_id=1)
        for error in ("NotControllerException", "UnknownServerException")
    )
    found = errors_of(KAFKA, output)
    assert list(found.values()) == [1, 1]
    assert all("BROKER_HEARTBEAT: org.apache.kafka" in entry for entry in found)


def test_warnings_and_lines_of_the_other_kind_are_no_errors() -> None:
    kpybrokers = "2026-11-28 19:37:33,476 ERROR kpybroker.x: broken"
    kafkas = "[2026-11-28 19:39:54,107] ERROR broken (kafka.server.X)"
    for kind, own, other in ((KAFKA, kafkas, kpybrokers), (KPYBROKER, kpybrokers, kafkas)):
        output = "\n".join([own, other, own.replace("ERROR", "WARN"), own.replace("ERROR", "WARNING")])
        assert sum(errors_of(kind, output).values()) == 1
