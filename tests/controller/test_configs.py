"""AlterConfigs and IncrementalAlterConfigs: invalid changes are refused with the same error codes as in Apache
Kafka."""

from __future__ import annotations

import pytest

from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import (
    AlterConfigs,
    AlterOp,
    ChangeConfigs,
    CreateTopics,
    IncrementalAlterConfigs,
    NewTopic,
    ReplaceConfigs,
)
from kpybroker.errors import ErrorCode as E
from kpybroker.wire.stored.metadata import ConfigRecord
from tests.controller.stage import Stage

SET, DELETE, APPEND, SUBTRACT = AlterOp
TOPIC, BROKER, METRICS, GROUP = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.CLIENT_METRICS,
    ResourceType.GROUP,
)


def change(
    kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> IncrementalAlterConfigs:
    return IncrementalAlterConfigs((ChangeConfigs(kind, name, changes),), validate_only)


@pytest.fixture
def stage() -> Stage:
    made = Stage()
    made.ask(CreateTopics((NewTopic("t", 1, 1),)))
    return made


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("nosuch", "1", "Unknown topic config name: nosuch"),
        ("retention.mss", "1", "Unknown topic config name: retention.mss; did you mean retention.ms?"),
        ("log.retention.ms", "1", "did you mean retention.ms?"),
        ("message.max.bytes", "1", "did you mean max.message.bytes?"),
        ("num.partitions", "3", "Unknown topic config name"),
        ("kpybroker.fsync", "always", "Unknown topic config name"),
        ("retention.ms", "abc", "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("retention.ms", "", "Not a number"),
        ("segment.ms", "1_000", "Not a number"),
        ("segment.bytes", "1000", "Value must be at least 1048576"),
        ("segment.bytes", "0x400000", "Not a number"),
        ("max.message.bytes", "3000000000", "Not a number of type INT"),
        ("cleanup.policy", "foo", "String must be one of: compact, delete"),
        ("compression.type", "none", "String must be one of: uncompressed, zstd"),
        ("compression.gzip.level", "0", "between 1 and 9 or equal to -1"),
        ("preallocate", "yes", "either true or false"),
        ("min.cleanable.dirty.ratio", "1.5", "no more than 1"),
        ("min.insync.replicas", "0", "at least 1"),
        ("leader.replication.throttled.replicas", "x", "[partitionId]:[brokerId]"),
        ("remote.storage.enable", "true", "Tiered Storage functionality is disabled"),
        ("max.compaction.lag.ms", "0", "at least 1"),
        ("x" * 2000, "1", "too long"),
        ("retention.ms", None, "Null value"),
    ],
)
def test_bad_topic_settings(stage: Stage, name: str, value: str | None, said: str) -> None:
    code, message = stage.code(change(TOPIC, "t", (name, SET, value)))
    assert code is (E.INVALID_REQUEST if value is None else E.INVALID_CONFIG)
    assert said in (message or "")
    assert stage.state.configs == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", ""),
        ("cleanup.policy", "delete, compact"),
        ("cleanup.policy", "delete,delete"),
        ("preallocate", "TRUE"),
        ("max.message.bytes", " 5000 "),
        ("segment.ms", "+5"),
        ("internal.segment.bytes", "1000"),
        ("min.insync.replicas", "5"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", "0:1,1:1"),
    ],
)
def test_good_topic_settings_are_kept_as_written(stage: Stage, name: str, value: str) -> None:
    assert stage.code(change(TOPIC, "t", (name, SET, value))) == (E.NONE, None)
    assert stage.state.config(TOPIC, "t") == {name: value}
    stage.machine.config.log_settings(stage.state.config(TOPIC, "t"))


def test_contradicting_settings_are_refused_together(stage: Stage) -> None:
    both = (("min.compaction.lag.ms", SET, "1000"), ("max.compaction.lag.ms", SET, "10"))
    assert stage.code(change(TOPIC, "t", *both))[0] is E.INVALID_CONFIG
    assert stage.code(change(TOPIC, "t", both[0]))[0] is E.NONE
    assert stage.code(change(TOPIC, "t", both[1]))[0] is E.INVALID_CONFIG


def test_lists_grow_and_shrink(stage: Stage) -> None:
    def after(operation: int, value: str) -> str:
        assert stage.code(change(TOPIC, "t", ("cleanup.policy", operation, value))) == (E.NONE, None)
        return stage.state.config(TOPIC, "t").get("cleanup.policy", "default")

    assert after(APPEND, "compact") == "delete,compact"
    assert after(APPEND, "compact") == "delete,compact"
    assert after(SUBTRACT, "delete") == "compact"
    assert after(APPEND, "delete,compact") == "compact,delete"
    assert after(SUBTRACT, "compact,delete") == ""
    assert after(DELETE, "") == "default"
    assert after(SUBTRACT, "delete") == ""


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ((("retention.ms", APPEND, "5"),), E.INVALID_CONFIG),
        ((("retention.ms", SUBTRACT, "5"),), E.INVALID_CONFIG),
        ((("nosuch", APPEND, "5"),), E.INVALID_CONFIG),
        ((("cleanup.policy", APPEND, "foo"),), E.INVALID_CONFIG),
        ((("cleanup.policy", APPEND, ""),), E.INVALID_CONFIG),
        ((("cleanup.policy", APPEND, "compact,,delete"),), E.INVALID_CONFIG),
        ((("retention.ms", 9, "5"),), E.INVALID_REQUEST),
        ((("retention.ms", SET, "5"), ("retention.ms", SET, "6")), E.INVALID_REQUEST),
        ((("nosuch", DELETE, None),), E.NONE),
        ((("segment.ms", DELETE, None),), E.NONE),
    ],
)
def test_operations(stage: Stage, changes: tuple[tuple[str, int, str | None], ...], code: E) -> None:
    assert stage.code(change(TOPIC, "t", *changes))[0] is code
    assert stage.state.configs == {}


def test_what_apache_kafka_leaves_out_of_a_list(stage: Stage) -> None:
    """Java's split leaves empty items out at the end; an empty text is one empty item, and an empty list none."""
    throttled = "leader.replication.throttled.replicas"
    assert stage.code(change(TOPIC, "t", (throttled, APPEND, ""))) == (E.NONE, None)
    assert stage.code(change(TOPIC, "t", (throttled, APPEND, "0:1,,"))) == (E.NONE, None)
    assert stage.state.config(TOPIC, "t")[throttled] == "0:1"


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
@pytest.mark.parametrize("setting", ["metrics", "match"])
def test_settings_of_client_metrics_are_no_lists(stage: Stage, setting: str, operation: int) -> None:
    refused = (E.INVALID_CONFIG, f"Can't {AlterOp(operation).name} to key {setting} because its type is not LIST.")
    assert stage.code(change(METRICS, "m", (setting, operation, "client_id=a"))) == refused


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nosuch", E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", E.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", E.INVALID_REQUEST),
        (BROKER, "abc", E.INVALID_REQUEST),
        (BROKER, "-1", E.INVALID_REQUEST),
        (METRICS, "", E.INVALID_REQUEST),
        (GROUP, "", E.INVALID_REQUEST),
        (ResourceType.BROKER_LOGGER, "1", E.INVALID_REQUEST),
        (99, "x", E.INVALID_REQUEST),
    ],
)
def test_resources_that_cannot_be_changed(stage: Stage, kind: int, name: str, code: E) -> None:
    assert stage.code(change(kind, name))[0] is code
    assert stage.code(AlterConfigs((ReplaceConfigs(kind, name, ()),)))[0] is code


@pytest.mark.parametrize(
    ("name", "setting", "value", "said"),
    [
        ("1", "num.partitions", "3", "Cannot update these configs dynamically: [num.partitions]"),
        ("", "num.partitions", "3", "Cannot update these configs dynamically: [num.partitions]"),
        ("1", "kpybroker.fsync", "always", "Cannot update these configs dynamically"),
        ("", "super.users", "User:a", "Cannot update these configs dynamically: [super.users]"),
        ("1", "allow.everyone.if.no.acl.found", "true", "Cannot update these configs dynamically"),
        ("1", "authorizer.class.name", "x.Y", "Cannot update these configs dynamically"),
        ("1", "log.retention.ms", "x", "Not a number of type LONG"),
        ("1", "log.retention.ms", "0", "unlimited (-1)"),
        ("", "min.insync.replicas", "0", "at least 1"),
        ("1", "leader.replication.throttled.rate", "-1", "at least 0"),
        ("1", "ssl.key.password", "hush", "per-listener"),
        ("", "num.io.threads", "17", "not be greater than double the current value 8"),
        ("1", "num.io.threads", "3", "at least half the current value 8"),
        (
            "",
            "log.cleaner.dedupe.buffer.size",
            "1048576",
            "(1048576), log.cleaner.threads (1): log.cleaner.dedupe.buffer.size must be at least 1MB",
        ),
        ("", "log.cleaner.threads", "0", "at least 1"),
        ("", "log.local.retention.ms", "604800001", "more than log.retention.ms property value: 604800000"),
        ("", "log.local.retention.ms", "-1", "Value must not be -1 as log.retention.ms value is set as 604800000"),
        ("1", "max.connections.per.ip.overrides", "localhost", "host:count"),
        ("", "ssl.keystore.type", "JKS", "per-listener"),
        ("", "listeners", "PLAINTEXT://:1234", "broker id must be specified: [listeners]"),
        ("", "listener.name.ssl.ssl.keystore.location", "x", "[listener.name.ssl.ssl.keystore.location]"),
        ("", "listener.name.ssl.plain.sasl.jaas.config", "", "[listener.name.ssl.plain.sasl.jaas.config]"),
        ("1", "sasl.kerberos.principal.to.local.rules", "DEFAULT,", "values must not be empty"),
        ("1", "ssl.engine.factory.class", "", "Class  could not be found."),
        ("", "remote.log.reader.threads", "4", "at least half the current value 10"),
    ],
)
def test_bad_broker_settings(stage: Stage, name: str, setting: str, value: str, said: str) -> None:
    code, message = stage.code(change(BROKER, name, (setting, SET, value)))
    assert code is E.INVALID_REQUEST
    assert said in (message or "")
    assert "hush" not in (message or "")


@pytest.mark.parametrize("name", ["", "1"])
def test_defaults_that_prevent_compacted_topics_are_refused(stage: Stage, name: str) -> None:
    """Apache Kafka accepts such defaults, in one change or in two, but then cannot create `__consumer_offsets`."""
    longest, shortest = (f"log.cleaner.{which}.compaction.lag.ms" for which in ("max", "min"))
    for changes in ([(longest, SET, "50"), (shortest, SET, "100")], [(longest, SET, "50")], [(shortest, SET, "100")]):
        code, message = stage.code(change(BROKER, name, *changes))
        if len(changes) == 1 and changes[0][0] == longest:
            assert code is E.NONE
        else:
            assert code is E.INVALID_REQUEST
            assert f"{shortest} (100) is greater than {longest} (50)" in (message or "")


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("1", "log.retention.ms", "-5"),
        ("", "log.cleanup.policy", "compact"),
        ("1", "max.connections", "100"),
        ("1", "max.connections.per.ip.overrides", "::1:3, 127.0.0.1:5"),
        ("", "num.io.threads", "16"),
        ("", "num.io.threads", "4"),
        ("", "log.local.retention.ms", "604800000"),
        ("", "log.local.retention.bytes", "1"),
        ("1", "listener.name.plaintext.sasl.oauthbearer.client.credentials.client.secret", "hush"),
        ("1", "a.plug.in", "x"),
    ],
)
def test_good_broker_settings(stage: Stage, name: str, setting: str, value: str) -> None:
    assert stage.code(change(BROKER, name, (setting, SET, value)))[0] is E.NONE
    assert stage.state.config(BROKER, name) == {setting: value}
    assert stage.code(change(BROKER, name, (setting, DELETE, None)))[0] is E.NONE
    assert stage.state.configs == {}


@pytest.mark.parametrize(
    ("kind", "setting", "value", "code"),
    [
        (METRICS, "interval.ms", "1000", E.NONE),
        (METRICS, "interval.ms", "99", E.INVALID_REQUEST),
        (METRICS, "interval.ms", "3600001", E.INVALID_REQUEST),
        (METRICS, "match", "client_id=a.*,client_software_name=x", E.NONE),
        (METRICS, "match", "foo", E.INVALID_CONFIG),
        (METRICS, "match", "foo=1", E.INVALID_CONFIG),
        (METRICS, "match", "client_id=[", E.INVALID_CONFIG),
        (METRICS, "nosuch", "1", E.INVALID_REQUEST),
        (GROUP, "consumer.session.timeout.ms", "46000", E.NONE),
        (GROUP, "consumer.session.timeout.ms", "1", E.INVALID_CONFIG),
        (GROUP, "consumer.heartbeat.interval.ms", "99999", E.INVALID_CONFIG),
        (GROUP, "share.record.lock.duration.ms", "1000", E.INVALID_CONFIG),
        (GROUP, "consumer.session.timeout.ms", "x", E.INVALID_CONFIG),
        (GROUP, "nosuch", "1", E.INVALID_CONFIG),
        (METRICS, "interval.ms", "soon", E.INVALID_CONFIG),
        (GROUP, "streams.num.standby.replicas", "2", E.NONE),
        (GROUP, "streams.num.standby.replicas", "3", E.INVALID_CONFIG),
        (GROUP, "share.auto.offset.reset", "by_duration:PT1H30M", E.NONE),
        (GROUP, "share.auto.offset.reset", "by_duration:P", E.INVALID_CONFIG),
        (GROUP, "share.auto.offset.reset", "sometime", E.INVALID_CONFIG),
    ],
)
def test_settings_of_groups_and_client_metrics(stage: Stage, kind: int, setting: str, value: str, code: E) -> None:
    assert stage.code(change(kind, "g", (setting, SET, value)))[0] is code


def test_replacing_resets_unnamed_settings(stage: Stage) -> None:
    def replace(*configs: tuple[str, str | None], validate_only: bool = False) -> E:
        return stage.code(AlterConfigs((ReplaceConfigs(TOPIC, "t", configs),), validate_only))[0]

    assert replace(("retention.ms", "5"), ("segment.ms", "6")) is E.NONE
    assert replace(("retention.ms", "7"), validate_only=True) is E.NONE
    assert stage.state.config(TOPIC, "t") == {"retention.ms": "5", "segment.ms": "6"}
    assert replace(("retention.ms", "7"), ("nosuch", "1")) is E.INVALID_CONFIG
    assert replace(("retention.ms", "7"), ("retention.ms", "8")) is E.INVALID_REQUEST
    assert replace(("retention.ms", None)) is E.INVALID_REQUEST
    assert replace(("segment.ms", "6")) is E.NONE
    assert stage.state.config(TOPIC, "t") == {"segment.ms": "6"}


def test_a_repeated_resource_is_refused_without_affecting_others(stage: Stage) -> None:
    changes = (("retention.ms", SET, "5"),)
    results = stage.ask(
        IncrementalAlterConfigs(
            (
                ChangeConfigs(TOPIC, "t", changes),
                ChangeConfigs(BROKER, "", (("log.retention.ms", SET, "5"),)),
                ChangeConfigs(TOPIC, "t", changes),
            )
        )
    )
    assert [result.error_code for result in results] == [E.INVALID_REQUEST, E.NONE, E.INVALID_REQUEST]
    assert stage.state.configs == {(BROKER, ""): {"log.retention.ms": "5"}}


def test_unchanged_values_are_not_written(stage: Stage) -> None:
    stage.ask(change(TOPIC, "t", ("retention.ms", SET, "5")))
    written = len(stage.log)
    stage.ask(change(TOPIC, "t", ("retention.ms", SET, "5"), ("segment.ms", DELETE, None)))
    stage.ask(change(TOPIC, "t", ("retention.ms", SET, "6"), validate_only=True))
    assert len(stage.log) == written


@pytest.mark.parametrize("broker", ["", "1"])
def test_an_unchanged_value_of_a_broker_is_written_again(stage: Stage, broker: str) -> None:
    """A broker of Apache Kafka then reads the file again that the value names. Settings that are not named are not
    written again."""
    name, other = "log.retention.ms", "log.retention.bytes"
    assert stage.code(change(BROKER, broker, (name, SET, "5"), (other, SET, "9")))[0] is E.NONE
    written = len(stage.log)
    stage.ask(change(BROKER, broker, (name, SET, "5"), ("log.roll.ms", DELETE, None)))
    stage.ask(change(BROKER, broker, (name, SET, "5"), validate_only=True))
    stage.ask(AlterConfigs((ReplaceConfigs(BROKER, broker, ((name, "5"),)),)))
    again = ConfigRecord(resource_type=BROKER, resource_name=broker, name=name, value="5")
    without = ConfigRecord(resource_type=BROKER, resource_name=broker, name=other, value=None)
    assert [record.message for record in stage.log[written:]] == [again, again, without]


def test_broker_settings_are_checked_together_with_related_ones(stage: Stage) -> None:
    """This holds even if the related setting was changed before. Accepted values never make a later change fail."""
    local = ("log.local.retention.ms", SET, "1000")
    assert stage.code(change(BROKER, "", local))[0] is E.NONE
    assert stage.code(change(BROKER, "", ("log.retention.ms", SET, "999")))[0] is E.INVALID_REQUEST
    assert stage.code(change(BROKER, "", ("log.retention.ms", SET, "999"), (*local[:2], "-2")))[0] is E.NONE
    assert stage.code(change(BROKER, "", ("log.retention.ms", SET, "-1"), (*local[:2], "-1")))[0] is E.NONE
    assert stage.code(change(BROKER, "", ("message.max.bytes", SET, "1")))[0] is E.NONE
    assert stage.code(change(BROKER, "", ("num.io.threads", SET, "16")))[0] is E.NONE
    assert stage.code(change(BROKER, "", ("num.io.threads", SET, "32")))[0] is E.NONE
    assert stage.code(change(BROKER, "1", ("num.io.threads", SET, "15")))[0] is E.INVALID_REQUEST


def test_only_the_active_controllers_own_directories_are_compared() -> None:
    """Another broker may have other directories (KIP-1066)."""
    stage = Stage(brokers=2, node_id="1", log_dirs="/a,/b")

    def code(broker: str, path: str) -> E:
        return stage.code(change(BROKER, broker, ("cordoned.log.dirs", SET, path)))[0]

    assert code("1", "/b") is E.NONE
    assert code("1", "/elsewhere") is E.INVALID_REQUEST
    assert code("2", "/elsewhere") is E.NONE
    assert code("2", "*,/elsewhere") is E.INVALID_REQUEST
