"""Records the responses to changes of settings and quotas at their bounds, as a table with one line for each change.

`python -m oracle.boundaries > tests/config/boundaries-4.3.1.tsv` sends the requests to Apache Kafka. They only validate
the changes.
"""

import contextlib
import json
from collections.abc import Iterator

from kpybroker.config.effect import KEYS
from kpybroker.config.key import Mode
from kpybroker.wire.rpc import alter_client_quotas as quotas
from kpybroker.wire.rpc import create_topics
from kpybroker.wire.rpc import incremental_alter_configs as configs
from oracle.asking import Conversation

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
NAMES = {TOPIC: "t", BROKER: "", CLIENT_METRICS: "m", GROUP: "g"}
VALUES = (
    *("-9223372036854775809", "-9223372036854775808", "-2147483649", "-2147483648", "-2", "-1", "0", "1", "2"),
    *("2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "nan", "NaN", "inf", "Infinity"),
    *(
        "-Infinity",
        "5e-324",
        "-5e-324",
        "1e308",
        "1e309",
        "0.5",
        "1d",
        "1_0",
        "",
        " ",
        " 7 ",
        "\u00a07",
        "abc",
        "\u20ac",
    ),
    *("\u0661", "true", "TRUE", ",", "a,b", "*", "0:1", "127.0.0.1:0", "client_id=a{99999999999999999999}"),
)
QUOTAS = (-1.0, 0.0, 5e-324, 1e-9, 0.4, 0.5, 1.0, 1.5, 2.0**31 - 1, 2.0**31, 2.0**63, 1e300, 1e308, float("inf"))
QUOTA_KEYS = {
    "user": ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"),
    "ip": ("connection_creation_rate",),
}
NOT_ASKED = ("listeners", "advertised.listeners")
"""Settings for which Kafka's response depends on its own addresses."""


def lines(conversation: Conversation) -> Iterator[str]:
    """Lines with resource type, setting, value as JSON and error code; then, for quotas, the same with entity types."""
    topic = create_topics.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    made = create_topics.Request(topics=[topic], timeout_ms=5000)
    conversation.ask("CreateTopics", 7, made, create_topics.Response)
    for kind, keys in KEYS.items():
        for key in keys.values():
            is_asked = kind != BROKER or key.mode is not Mode.READ_ONLY
            if key.name.startswith(("ssl.", "sasl.", "kpybroker.")) or key.name in NOT_ASKED or not is_asked:
                continue
            for value in VALUES:
                yield f"{kind}\t{key.name}\t{json.dumps(value)}\t{_of_setting(conversation, kind, key.name, value)}"
    for entity, names in QUOTA_KEYS.items():
        for name in names:
            for number in (*QUOTAS, float("nan")):
                yield f"{entity}\t{name}\t{json.dumps(number)}\t{_of_quota(conversation, entity, name, number)}"


def _of_setting(conversation: Conversation, kind: int, name: str, value: str) -> int:
    change = configs.AlterableConfig(name=name, config_operation=0, value=value)
    resource = configs.AlterConfigsResource(resource_type=kind, resource_name=NAMES[kind], configs=[change])
    request = configs.Request(resources=[resource], validate_only=True)
    told = conversation.ask("IncrementalAlterConfigs", 1, request, configs.Response)
    return int(told.responses[0].error_code)


def _of_quota(conversation: Conversation, kind: str, name: str, value: float) -> int:
    entity = [quotas.EntityData(entity_type=kind, entity_name=None)]
    entry = quotas.EntryData(entity=entity, ops=[quotas.OpData(key=name, value=value, remove=False)])
    told = conversation.ask(
        "AlterClientQuotas", 1, quotas.Request(entries=[entry], validate_only=True), quotas.Response
    )
    return int(told.entries[0].error_code)


def main() -> None:
    """Print the responses of Apache Kafka."""
    from oracle.kafka import Kafka

    with Kafka() as kafka, contextlib.closing(Conversation(("127.0.0.1", kafka.port), 20.0)) as conversation:
        for line in lines(conversation):
            print(line)


if __name__ == "__main__":
    main()
