"""A broker never starts with a setting that asks for a protection which it cannot provide."""

from __future__ import annotations

import pytest

from kpybroker.config import parse_config
from kpybroker.config.broker_keys import BROKER_KEYS
from kpybroker.config.dynamic import usable, why_unusable
from kpybroker.config.effect import BROKER, TOPIC, key_of
from kpybroker.config.key import BOOLEAN, INT, LONG, PASSWORD, ConfigKey, Effect, OneOf
from kpybroker.config.topic_keys import TOPIC_KEYS
from kpybroker.errors import ConfigError

REFUSED = [key for key in BROKER_KEYS.values() if key.effect is Effect.REFUSED]
ACCESS = ("principal.builder.class", "sasl.oauthbearer.jwt.validator.class")
DATA = (
    "create.topic.policy.class.name",
    "config.providers",
    "remote.log.storage.system.enable",
    "ssl.engine.factory.class",
)


def asking(key: ConfigKey) -> str:
    """A valid value that asks for the protection."""
    if key.kind is BOOLEAN:
        return "false" if key.default_value else "true"
    if key.kind in (INT, LONG):
        return "1"
    if isinstance(key.check, OneOf):
        return next(word for word in key.check.words if word != key.default)
    return "hush" if key.kind is PASSWORD else "x.Y"


def test_the_settings_that_users_rely_on_most_are_refused() -> None:
    assert {key.name for key in REFUSED} >= {*ACCESS, *DATA}


@pytest.mark.parametrize("key", REFUSED, ids=lambda key: key.name)
@pytest.mark.parametrize("prefix", ["", "listener.name.plaintext.", "listener.name.plaintext.scram-sha-256."])
def test_a_start_is_refused_with_name_value_and_remedy(key: ConfigKey, prefix: str) -> None:
    if prefix.endswith("256.") and not key.name.startswith(("sasl.", "connections.")):
        return
    name = prefix + key.name
    with pytest.raises(ConfigError) as refused:
        parse_config({name: asking(key)}, "server.properties")
    said = str(refused.value)
    assert said.startswith(f"server.properties: {name}=")
    assert "cannot be applied" in said
    assert "; remove the setting, " in said
    assert ("hush" in said) == (asking(key) == "hush" and not key.sensitive)


@pytest.mark.parametrize("key", REFUSED, ids=lambda key: key.name)
def test_values_that_ask_for_nothing_are_accepted(key: ConfigKey) -> None:
    for text in {key.default or "", "" if key.kind not in (BOOLEAN, INT, LONG) else str(key.default)}:
        if key.refusal(text) is None:
            parse_config({key.name: text})


def test_all_refused_settings_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(
            {
                "create.topic.policy.class.name": "a.B",
                "alter.config.policy.class.name": "c.D",
                "principal.builder.class": "e.F",
            }
        )
    said = str(refused.value)
    assert "create.topic.policy.class.name=a.B, alter.config.policy.class.name=c.D cannot be applied" in said
    assert ". principal.builder.class=e.F cannot be applied" in said


@pytest.mark.parametrize("key", REFUSED, ids=lambda key: key.name)
def test_in_the_metadata_it_is_reported_and_has_no_effect(key: ConfigKey) -> None:
    """A node starts with such a setting in the metadata, and uses the previous value, or none."""
    text = asking(key)
    assert f"{key.name}=" in (why_unusable(BROKER, key.name, text) or "")
    assert usable(BROKER, {key.name: text}) == {}
    config = parse_config()
    assert config.with_dynamic({key.name: text}, {f"listener.name.plaintext.{key.name}": text}) is config


def test_a_topic_cannot_be_tiered() -> None:
    assert "tiered storage is not supported" in (why_unusable(TOPIC, "remote.storage.enable", "true") or "")
    assert why_unusable(TOPIC, "remote.storage.enable", "false") is None


def test_prefixed_settings_have_the_row_of_the_plain_name() -> None:
    for name in ("sasl.jaas.config", "listener.name.x.sasl.jaas.config", "listener.name.x.plain.sasl.jaas.config"):
        assert key_of(BROKER, name) is BROKER_KEYS["sasl.jaas.config"]
    assert key_of(BROKER, "plain.sasl.jaas.config") is None
    assert key_of(BROKER, "listener.name.x.max.connections") is BROKER_KEYS["max.connections"]
    assert key_of(TOPIC, "listener.name.x.retention.ms") is None


@pytest.mark.parametrize(
    "name",
    [
        "confluent.license.topic.replication.factor",
        "confluent.balancer.enable",
        "cruise.control.metrics.reporter.bootstrap.servers",
        "strimzi.authorization.grants.refresh.period.seconds",
        "rsm.config.bucket",
        "io.confluent.kafka.x",
    ],
)
def test_settings_of_other_software_are_ignored(name: str) -> None:
    assert parse_config({name: "x"}).static[name] == "x"


@pytest.mark.parametrize(
    "name",
    [
        "authoriser.class.name",
        "sals.enabled.mechanisms",
        "listner.security.protocol.map",
        "nodeid",
        "my.plug.in",
        "confluent",
        "confluence.x",
        "broker.confluent",
        "kpybroker.confluent",
        "listener.name.plaintext.confluent.x",
        "listener.name.plaintext.plain.sasl.jaas.confg",
        "x." * 200,
    ],
)
def test_a_mistake_does_not_count_as_a_setting_of_other_software(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown setting"):
        parse_config({name: "x"})


FORCED = [
    {"log.flush.interval.messages": "1"},
    {"log.flush.interval.messages": "10000"},
    {"log.flush.interval.ms": "1000"},
    {"log.flush.interval.ms": "0"},
    {"log.flush.scheduler.interval.ms": "2000"},
]


@pytest.mark.parametrize("settings", FORCED, ids=str)
def test_forced_writes_are_kept_by_fsync(settings: dict[str, str]) -> None:
    config = parse_config(settings)
    assert config.log_settings().fsync_always
    ((name, _),) = settings.items()
    topics = {"log.flush.interval.messages": "flush.messages"}.get(name, "flush.ms")
    assert not config.log_settings({topics: str(TOPIC_KEYS[topics].default)}).fsync_always, "as in Apache Kafka"
    with pytest.raises(ConfigError, match=f"{name}=.* requires forced writes, but kpybroker.fsync=page-cache"):
        parse_config({**settings, "kpybroker.fsync": "page-cache"})
    assert parse_config({**settings, "kpybroker.fsync": "always"}).fsync == "always"


@pytest.mark.parametrize("settings", FORCED[:4], ids=str)
def test_forced_writes_that_are_set_while_the_broker_runs_are_kept_too(settings: dict[str, str]) -> None:
    before = parse_config({"kpybroker.fsync": "page-cache"})
    assert not before.log_settings().fsync_always
    assert before.with_dynamic(settings, {}).log_settings().fsync_always
    assert before.with_dynamic({}, settings).log_settings().fsync_always


@pytest.mark.parametrize("name", ["flush.messages", "flush.ms"])
def test_forced_writes_of_one_topic_are_kept(name: str) -> None:
    config = parse_config()
    assert config.log_settings({name: "1"}).fsync_always
    assert not config.log_settings({name: str(TOPIC_KEYS[name].default)}).fsync_always
    assert parse_config({"kpybroker.fsync": "always"}).log_settings({name: "9223372036854775807"}).fsync_always
