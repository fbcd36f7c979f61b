"""Tests that the tables of settings agree with the ConfigDefs of Apache Kafka 4.3.1, which were printed by
reflection."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from kpybroker.config import BrokerConfig, LogSettings, parse_config
from kpybroker.config.broker_keys import BROKER_KEYS, DYNAMIC_KEYS
from kpybroker.config.delivery_keys import DELIVERY_KEYS, SCHEDULED
from kpybroker.config.describe import describe_topic
from kpybroker.config.documentation import NO_EFFECT, documentation, purpose
from kpybroker.config.key import Between, ConfigKey, Effect, OneOf
from kpybroker.config.own_keys import OWN_KEYS
from kpybroker.config.reference import page
from kpybroker.config.security_keys import AUTHORIZER_KEYS, SECURITY_KEYS
from kpybroker.config.topic_keys import CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS, TOPIC_SYNONYMS

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PACKAGE = HERE.parent.parent / "kpybroker"
DEFINITIONS = json.loads((HERE / "definitions-4.3.1.json").read_text())
OUR_DEFAULTS = {"group.initial.rebalance.delay.ms": "0", "broker.session.timeout.ms": "3000"}
"""Intentional differences: the first join does not wait, and a silent broker is detected sooner."""
TABLES: Mapping[str, Mapping[str, ConfigKey]] = {
    "broker": BROKER_KEYS,
    "topic": TOPIC_KEYS,
    "group": GROUP_KEYS,
    "client-metrics": CLIENT_METRICS_KEYS,
}


@pytest.mark.parametrize("table", TABLES)
def test_the_tables_have_exactly_kafkas_settings(table: str) -> None:
    ours = {name for name, key in TABLES[table].items() if not (name.startswith("kpybroker.") or key.unstable)}
    assert ours == set(DEFINITIONS[table])


@pytest.mark.parametrize("table", TABLES)
def test_types_defaults_ranges_and_modes_are_kafkas(table: str) -> None:
    for name, (kind, default, validator, mode, internal) in DEFINITIONS[table].items():
        key = TABLES[table][name]
        assert key.kind.name == kind, name
        assert key.default == OUR_DEFAULTS.get(name, default), name
        assert key.internal == internal, name
        if mode is not None:
            assert key.mode.value == mode, name
        if isinstance(key.check, Between | OneOf) and name != "share.auto.offset.reset":
            assert str(key.check) == validator.removeprefix("(case insensitive) "), name
        elif validator and validator.startswith("["):
            assert key.check is not None, name


def test_every_default_is_in_range() -> None:
    for table in TABLES.values():
        for key in table.values():
            if key.default:
                assert key.parse(key.default) == key.default_value


def test_own_settings_have_our_prefix_and_a_text() -> None:
    own = [*OWN_KEYS, *DELIVERY_KEYS]
    assert all(key.name.startswith("kpybroker.") and key.doc and key.has_effect for key in own)
    ours = {name for table in ("topic", "group") for name in TABLES[table] if name.startswith("kpybroker.")}
    assert ours == {key.name for key in DELIVERY_KEYS}


def test_own_settings_of_a_topic_are_shown_only_if_they_are_set() -> None:
    config = parse_config()
    shown = {entry.name for entry in describe_topic(config, {SCHEDULED: "true"})}
    assert shown - {entry.name for entry in describe_topic(config, {})} == {SCHEDULED}


def test_the_typed_view_of_a_log_has_the_tables_defaults() -> None:
    assert parse_config().log_settings() == LogSettings()


def _attributes_read() -> set[str]:
    """The names of attributes that the product reads outside config, including the names that components use for
    settings."""
    found: set[str] = set()
    by_field: dict[str, set[str]] = defaultdict(set)
    for file in PACKAGE.rglob("*.py"):
        if file.is_relative_to(PACKAGE / "config"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
                call = node.value
                if isinstance(call.func, ast.Name) and call.func.id == "setting":
                    by_field[ast.unparse(node.target)].add(BROKER_KEYS[ast.literal_eval(call.args[0])].attribute)
    return found.union(*(names for field, names in by_field.items() if field in found))


DERIVED = {
    "broker_id": "node_id",
    "max_connections_per_ip": "connections_from",
    "max_connections_per_ip_overrides": "connections_from",
    "log_dir": "log_dirs",
    "cleanup_policy": "compacted",
    "fsync": "fsync_always",
    "record_validation": "record_validation_full",
    "replica_selector_class": "is_rack_aware",
    "connections_max_reauth_ms": "lifetimes_ms",
    "delegation_token_expiry_check_interval_ms": "expiry_check_interval_ms",
    "delegation_token_expiry_time_ms": "expiry_time_ms",
    "delegation_token_max_lifetime_ms": "max_lifetime_ms",
    "delegation_token_secret_key": "secret_key",
    "sasl_enabled_mechanisms": "mechanisms",
    "sasl_jaas_config": "users",
    "sasl_mechanism_controller_protocol": "login_to_controllers",
    "sasl_mechanism_inter_broker_protocol": "login_to_brokers",
    "sasl_oauthbearer_clock_skew_seconds": "clock_skew_seconds",
    "sasl_oauthbearer_expected_audience": "audiences",
    "sasl_oauthbearer_expected_issuer": "issuer",
    "sasl_oauthbearer_jwks_endpoint_refresh_ms": "refresh_ms",
    "sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms": "backoff_max_ms",
    "sasl_oauthbearer_jwks_endpoint_retry_backoff_ms": "backoff_ms",
    "sasl_oauthbearer_jwks_endpoint_url": "url",
    "sasl_oauthbearer_scope_claim_name": "scope_claim",
    "sasl_oauthbearer_sub_claim_name": "sub_claim",
    "sasl_server_callback_handler_class": "tokens",
    "sasl_server_max_receive_size": "receive_bytes_max",
    "security_inter_broker_protocol": "inter_broker_listener_name",
}
"""Settings that are read under another name."""
SMELLS_OF_PROTECTION = re.compile(
    r"(^|\.)(acl|auth|authorizer|callback|client\.auth|cordoned|flush\.(interval\.)?m|jaas|password|policy|principal|sasl"
    r"|secret|security|ssl|super)|min\.isr$|min\.insync|unclean\.leader\.election\.enable|providers$|retention\.(ms|bytes)$"
)
READ_BY_THE_VIEW = {
    "flush.messages",
    "flush.ms",
    "listener.security.protocol.map",
    "process.roles",
    "controller.quorum.voters",
    "errors.deadletterqueue.group.enable",
    "internal.segment.bytes",
}
"""Settings that determine how others are read, or that are checked and need no other reader."""


def test_settings_marked_as_used_have_a_reader() -> None:
    read = _attributes_read()
    synonyms = {name for topic, names in TOPIC_SYNONYMS.items() for name, _ in names if TOPIC_KEYS[topic].has_effect}
    keys = [*BROKER_KEYS.values(), *TOPIC_KEYS.values(), *GROUP_KEYS.values(), *CLIENT_METRICS_KEYS.values()]
    unread = [
        key.name
        for key in keys
        if key.has_effect and key.name not in READ_BY_THE_VIEW and key.name not in synonyms
        if DERIVED.get(key.attribute, key.attribute) not in read
    ]
    assert unread == [], "marked as used, but nobody reads them"


def test_settings_in_the_typed_view_are_marked_as_used() -> None:
    offered = {field.name for field in dataclasses.fields(BrokerConfig)}
    for key in BROKER_KEYS.values():
        if key.attribute in offered:
            assert key.has_effect, f"{key.name} has an attribute, but is marked as without effect"


def test_harmless_security_settings_say_why() -> None:
    """Settings about security or forced writes may be called harmless only with a reason."""
    for key in (*SECURITY_KEYS, *AUTHORIZER_KEYS.values()):
        assert key.effect is Effect.REFUSED or key.doc, key.name
    every = [*BROKER_KEYS.values(), *TOPIC_KEYS.values()]
    for key in every:
        if key.effect is Effect.HARMLESS and not key.doc:
            assert not SMELLS_OF_PROTECTION.search(key.name), key.name
        assert key.doc or key.effect in (Effect.OBEYED, Effect.HARMLESS), key.name


def test_the_page_shows_each_setting_once_in_the_right_section() -> None:
    _, mapped, refused, harmless = re.split(r"\n## (?:Replaced by|Refused|Accepted without)", page())
    for part, effect in ((mapped, Effect.MAPPED), (refused, Effect.REFUSED), (harmless, Effect.HARMLESS)):
        shown = re.findall(r"^\| `([^`]+)` ", part, re.MULTILINE)
        keys = [*BROKER_KEYS.values(), *TOPIC_KEYS.values(), *GROUP_KEYS.values(), *CLIENT_METRICS_KEYS.values()]
        assert sorted(shown) == sorted(key.name for key in keys if key.effect is effect and not key.internal)


def test_the_page_about_settings_is_up_to_date() -> None:
    found = (PACKAGE.parent / "docs" / "configuration.md").read_text()
    assert found == page(), "regenerate it: python -m kpybroker.config.reference > docs/configuration.md"


def test_every_setting_has_exactly_one_sentence() -> None:
    every = {**BROKER_KEYS, **DYNAMIC_KEYS, **TOPIC_KEYS, **GROUP_KEYS, **CLIENT_METRICS_KEYS, **AUTHORIZER_KEYS}
    assert [name for name, key in every.items() if not documentation(key).removesuffix(NO_EFFECT)] == []
    lines = (PACKAGE / "config" / "documentation.txt").read_text().splitlines()[1:]
    names = [line.partition(": ")[0] for line in lines]
    assert len(names) == len(set(names))
    assert [name for name in names if name not in every] == []
    assert all(line.endswith(".") for line in lines)


def test_settings_that_give_defaults_or_limits_name_the_other_setting() -> None:
    assert purpose("log.retention.hours").startswith("The default of topics' retention.ms. How long records are kept")
    assert purpose("group.consumer.session.timeout.ms").startswith(
        "The default of groups' consumer.session.timeout.ms."
    )
    assert (
        purpose("group.share.max.session.timeout.ms") == "Largest share.session.timeout.ms that a group may be given."
    )
    assert purpose("kpybroker.fsync") == ""
