"""Compares the responses of each API to a user who lacks one operation with the responses that were recorded on Apache
Kafka (`oracle.authorization_matrix`)."""

import json
from typing import Any

import pytest

from compat_tests.conftest import Running
from kpybroker.wire.api import by_name
from oracle import authorization_patterns as patterns
from oracle.authorization import LISTENER, OF_CONTROLLERS, SETTINGS, Ports
from oracle.authorization_matrix import MATRIX, RECORDED, play, properties, some_ports
from oracle.broker import KPyBroker
from oracle.cluster import FIRST_CONTROLLER, Cluster
from oracle.kafka import SMALL, Kafka
from oracle.target import steady_port

FORWARDED = [case for case in MATRIX if by_name[case.api].is_forwarded and not case.at_controller]


def different(answered: dict[str, Any]) -> dict[str, Any]:
    """By case, the responses that differ from Apache Kafka's, and Apache Kafka's responses."""
    recorded = json.loads(RECORDED.read_text())
    return {title: (told, recorded[title]) for title, told in answered.items() if told != recorded[title]}


def started(target_name: str, ports: Ports) -> Running:
    """A node that is both a broker and a controller."""
    if target_name == "kafka":
        kafka = Kafka(port=ports.broker, properties=properties(ports), jvm=("-XX:TieredStopAtLevel=1",))
        kafka.controller_port = ports.controller
        return kafka
    return KPyBroker(port=ports.broker, properties=properties(ports))


@pytest.mark.timeout(600)
def test_each_refusal_is_apache_kafkas(target_name: str) -> None:
    ports = some_ports()
    with started(target_name, ports):
        answered = play(ports)
    assert len(answered) == len(json.loads(RECORDED.read_text())), "python -m oracle.authorization_matrix records them"
    assert not different(answered)


@pytest.mark.timeout(600)
def test_another_node_decides_in_the_same_way(target_name: str) -> None:
    """The controller authorizes requests that a broker forwards, for the principal in the Envelope."""
    cluster = Cluster(
        target_name, brokers=1, controllers=1, properties={**SETTINGS, **SMALL}, jvm=("-XX:TieredStopAtLevel=1",)
    )
    broker, controller = cluster.nodes[1], cluster.nodes[FIRST_CONTROLLER]
    ports = Ports(broker.seat.port, steady_port(), controller.seat.controller_port, steady_port())
    for key in ("listeners", "advertised.listeners"):
        broker.properties[key] += f",{LISTENER}://127.0.0.1:{ports.named}"
    controller.properties["listeners"] += f",{OF_CONTROLLERS}://127.0.0.1:{ports.steering}"
    with cluster:
        assert not different(play(ports, FORWARDED))


def test_patterns_hosts_and_principals_decide_in_the_same_way(target_name: str) -> None:
    """The ACLs are random sets: DENY and ALLOW; literal, prefixed and wildcard; for the user, for all users, for other
    users."""
    ports = some_ports()
    with started(target_name, ports):
        found = patterns.play(ports)
    assert found == json.loads(patterns.RECORDED.read_text())
