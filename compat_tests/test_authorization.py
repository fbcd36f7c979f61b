"""The responses to a user who lacks one operation, for each API: compared with those recorded on Apache Kafka
(`oracle.authorization`)."""

import json

import pytest

from compat_tests.conftest import Running
from oracle.authorization import RECORDED, SETTINGS, listeners, play
from oracle.broker import KPyBroker
from oracle.kafka import Kafka
from oracle.target import steady_port


@pytest.mark.timeout(300)
def test_each_response_equals_apache_kafkas(target_name: str) -> None:
    broker: Running = Kafka(jvm=("-XX:TieredStopAtLevel=1",)) if target_name == "kafka" else KPyBroker()
    named = steady_port()
    shown = listeners(broker.port, named)
    controller = f",CONTROLLER://127.0.0.1:{broker.controller_port}" if isinstance(broker, Kafka) else ""
    broker.properties |= {**SETTINGS, "listeners": shown + controller, "advertised.listeners": shown}
    with broker:
        answered = play(broker.port, named)
    recorded = json.loads(RECORDED.read_text())
    assert answered.keys() == recorded.keys(), "python -m oracle.authorization records them anew"
    for title, by_denial in recorded.items():
        for denied, expected in by_denial.items():
            assert answered[title][denied] == expected, f"{title}, denied: {denied}"
            if denied != "nothing" and title not in SAME:
                assert expected != by_denial["nothing"] or (title, denied) in SAME, f"{title} shows nothing"


SAME = {"DescribeCluster v2", "InitProducerId v5", ("DeleteTopics v6 by id", "DESCRIBE on TOPIC")}
"""Cases in which a denial makes no difference: any user may describe the cluster, a user who may write to some topic
may be idempotent, and a topic is deleted by its id without DESCRIBE."""
