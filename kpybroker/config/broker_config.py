"""The typed view of a broker's settings: static settings, overridden by dynamic settings (KIP-226)."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from posixpath import normpath
from typing import Any

from kpybroker.config.authorization import parse_authorization
from kpybroker.config.broker_keys import BROKER_KEYS, CHANGEABLE_KEYS
from kpybroker.config.dynamic import topic_text, usable
from kpybroker.config.effect import BROKER, LISTENER_PREFIX, TOPIC
from kpybroker.config.endpoints import read_endpoints
from kpybroker.config.key import Mode
from kpybroker.config.listener_limits import (
    is_listener_limit,
    is_listener_store,
    read_host_limits,
    read_listener_limits,
)
from kpybroker.config.listeners import Endpoint
from kpybroker.config.log_settings import LONG_MAX, LogSettings
from kpybroker.config.login import Login
from kpybroker.config.quorum import (
    INITIAL,
    NO_CONTROLLERS,
    ControllerServer,
    InitialController,
    StaticVoter,
    check_roles,
    parse_initial,
    parse_servers,
    parse_voters,
)
from kpybroker.config.sasl_settings import SaslListener
from kpybroker.config.token_settings import TokenSettings, token_settings
from kpybroker.config.topic_keys import TOPIC_KEYS, TOPIC_SYNONYMS
from kpybroker.errors import ConfigError

CACHED_LOG_SETTINGS_MAX = 1000
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
SELECTORS = (RACK_AWARE, "org.apache.kafka.common.replica.LeaderSelector")
"""Kafka's two ways to choose the replica from which a consumer reads (KIP-392)."""
NO_SETTINGS: Mapping[str, str] = {}
SETS = ("cleanup_policy", "leader_replication_throttled_replicas", "follower_replication_throttled_replicas")
"""Lists whose order has no meaning."""
OF_ONE_BROKER = frozenset({"cordoned.log.dirs"})
"""Settings that change while the broker runs, and only a single broker can have."""
NOT_GIVEN = {"node.id": "1", "process.roles": "broker,controller", "controller.listener.names": "CONTROLLER"}
"""Defaults of settings that Kafka requires, so that a single node needs no properties file."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)  # for 180 fields, these two take 3 ms of every start
class BrokerConfig:
    """A broker's effective settings, named as in Kafka but in snake_case. Create it with `parse_config`.

    `static` has the settings that were given at the start; `dynamic_default` and `dynamic_broker` have those in the
    ConfigRecords of BROKER "" and of this broker. `listeners` are the listeners for clients; `controller_listeners` are
    the listeners in controller.listener.names.
    """

    static: Mapping[str, str]
    dynamic_default: Mapping[str, str]
    dynamic_broker: Mapping[str, str]
    listeners: tuple[Endpoint, ...]
    controller_listeners: tuple[Endpoint, ...]
    advertised_listeners: tuple[Endpoint, ...]
    """The address of each of `listeners` for clients. The host is empty if none is set (`config/advertised.py`)."""
    advertised_controller_listeners: tuple[Endpoint, ...]
    """The address of each of `controller_listeners` for other nodes. The host may be empty, too."""
    controller_listener_names: tuple[str, ...]
    """In upper case, as all listener names are here."""
    controller_quorum_voters: tuple[StaticVoter, ...]
    controller_quorum_bootstrap_servers: tuple[ControllerServer, ...]
    controller_quorum_auto_join_enable: bool
    initial_controllers: tuple[InitialController, ...] | None
    """The initial voters; empty if other nodes have them, None if this node is the only voter."""
    controller_quorum_election_timeout_ms: int
    controller_quorum_election_backoff_max_ms: int
    controller_quorum_fetch_timeout_ms: int
    controller_quorum_fetch_max_bytes: int
    controller_quorum_fetch_snapshot_max_bytes: int
    controller_quorum_request_timeout_ms: int
    controller_quorum_retry_backoff_ms: int
    log_dirs: tuple[str, ...]
    cordoned_log_dirs: frozenset[str]
    """The log directories in which no new partition is created (KIP-1066)."""
    metadata_log_dir: str

    node_id: int
    broker_rack: str | None
    process_roles: tuple[str, ...]

    broker_heartbeat_interval_ms: int
    broker_session_timeout_ms: int
    controlled_shutdown_enable: bool
    initial_broker_registration_timeout_ms: int
    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_seconds: int

    inter_broker_listener_name: str | None
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_lag_time_max_ms: int
    replica_socket_timeout_ms: int
    replica_selector_class: str | None
    leader_replication_throttled_rate: int
    follower_replication_throttled_rate: int
    replica_alter_log_dirs_io_max_bytes_per_second: int

    delivery_broker_max_pending: int
    num_partitions: int
    default_replication_factor: int
    unstable_feature_versions_enable: bool
    auto_create_topics_enable: bool
    delete_topic_enable: bool

    metadata_log_max_record_bytes_between_snapshots: int
    metadata_log_max_snapshot_interval_ms: int
    metadata_log_segment_bytes: int
    metadata_log_segment_ms: int
    metadata_max_retention_bytes: int
    metadata_max_retention_ms: int

    socket_request_max_bytes: int
    connections_max_idle_ms: int
    max_connection_creation_rate: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    listener_limits: Mapping[str, int]
    """Connection limits of individual listeners, by the full names of the settings."""
    connection_failed_authentication_delay_ms: int
    sasl_listeners: Mapping[str, SaslListener]
    """The listeners at which clients log in, by name."""
    login_to_brokers: Login | None
    login_to_controllers: Login | None
    tls_to_brokers: str | None
    """The listener whose stores are used to connect to other brokers; None if brokers do not use TLS."""
    tls_to_controllers: str | None
    delegation_tokens: TokenSettings
    queued_max_request_bytes: int
    quota_window_num: int
    quota_window_size_seconds: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    request_timeout_ms: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int

    log_cleaner_enable: bool
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_max_bytes_per_second: float
    log_retention_check_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_initial_task_delay_ms: int
    producer_id_expiration_ms: int

    errors_deadletterqueue_auto_create_topics_enable: bool
    errors_deadletterqueue_topic_name_prefix: str
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_size: int
    group_consumer_assignors: tuple[str, ...]
    group_consumer_regex_refresh_interval_ms: int
    group_consumer_session_timeout_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_heartbeat_interval_ms: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_assignment_interval_ms: int
    group_consumer_min_assignment_interval_ms: int
    group_consumer_max_assignment_interval_ms: int
    group_consumer_max_size: int
    group_consumer_migration_policy: str
    group_coordinator_rebalance_protocols: tuple[str, ...]
    group_share_assignment_interval_ms: int
    group_share_delivery_count_limit: int
    group_share_heartbeat_interval_ms: int
    group_share_max_assignment_interval_ms: int
    group_share_max_delivery_count_limit: int
    group_share_max_heartbeat_interval_ms: int
    group_share_max_partition_max_record_locks: int
    group_share_max_record_lock_duration_ms: int
    group_share_max_session_timeout_ms: int
    group_share_max_share_sessions: int
    group_share_max_size: int
    group_share_min_assignment_interval_ms: int
    group_share_min_delivery_count_limit: int
    group_share_min_heartbeat_interval_ms: int
    group_share_min_partition_max_record_locks: int
    group_share_min_record_lock_duration_ms: int
    group_share_min_session_timeout_ms: int
    group_share_partition_max_record_locks: int
    group_share_record_lock_duration_ms: int
    group_share_session_timeout_ms: int
    group_streams_assignment_interval_ms: int
    group_streams_heartbeat_interval_ms: int
    group_streams_initial_rebalance_delay_ms: int
    group_streams_max_assignment_interval_ms: int
    group_streams_max_heartbeat_interval_ms: int
    group_streams_max_session_timeout_ms: int
    group_streams_max_size: int
    group_streams_max_standby_replicas: int
    group_streams_min_assignment_interval_ms: int
    group_streams_min_heartbeat_interval_ms: int
    group_streams_min_session_timeout_ms: int
    group_streams_num_standby_replicas: int
    group_streams_session_timeout_ms: int
    offset_metadata_max_bytes: int
    offsets_commit_timeout_ms: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int

    share_coordinator_cold_partition_snapshot_interval_ms: int
    share_coordinator_snapshot_update_records_per_snapshot: int
    share_coordinator_state_topic_min_isr: int
    share_coordinator_state_topic_num_partitions: int
    share_coordinator_state_topic_prune_interval_ms: int
    share_coordinator_state_topic_replication_factor: int
    share_coordinator_state_topic_segment_bytes: int
    share_coordinator_write_timeout_ms: int

    add_partitions_to_txn_retry_backoff_max_ms: int
    add_partitions_to_txn_retry_backoff_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transactional_id_expiration_ms: int

    authorizer_class_name: str
    """Empty if there is no authorizer."""
    super_users: frozenset[str]
    """Principals, as text."""
    allow_everyone_if_no_acl_found: bool

    api_versions: tuple[str, ...]
    audit_format: str
    cluster_id: str | None
    fsync: str
    http_host: str
    http_port: int | None
    http_tls_listener: str | None
    http_token_file: str | None
    http_token_paths: tuple[str, ...]
    max_open_files: int
    max_partitions: int
    record_validation: str

    _log_settings: dict[tuple[frozenset[tuple[str, str]], bool], LogSettings] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    described_topics: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """A cache of the results of `describe` for topics under these settings."""

    @classmethod
    def of(
        cls, static: Mapping[str, str], dynamic_default: Mapping[str, str], dynamic_broker: Mapping[str, str]
    ) -> BrokerConfig:
        """The view of three layers of settings; later layers override earlier ones. Raises ConfigError for a value that
        is out of range."""
        texts = {**static, **dynamic_default, **dynamic_broker}
        values: dict[str, Any] = {}
        for key in CHANGEABLE_KEYS.values():
            given = texts.get(key.name)
            values[key.attribute] = key.parse(given) if given is not None else key.default_value
        values.update(_derived(values, texts))
        wanted = {name: values[name] for name in (f.name for f in dataclasses.fields(cls)) if name in values}
        return cls(static=static, dynamic_default=dynamic_default, dynamic_broker=dynamic_broker, **wanted)

    @property
    def is_rack_aware(self) -> bool:
        """Whether consumers are directed to a replica in their own rack (KIP-392)."""
        return self.replica_selector_class == RACK_AWARE

    def with_dynamic(self, default: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """The static settings, overridden by the dynamic ones of the cluster and of this broker. Never raises.

        If a value cannot be applied, the last valid value stays in effect.
        """
        for_all = usable(BROKER, _changeable(default), self.dynamic_default)
        for_this = usable(BROKER, _changeable(broker, OF_ONE_BROKER), self.dynamic_broker)
        if for_all == self.dynamic_default and for_this == self.dynamic_broker:
            return self
        return BrokerConfig.of(self.static, for_all, for_this)

    def connections_from(self, host: str) -> int:
        """The connection limit of an address."""
        return self.max_connections_per_ip_overrides.get(host, self.max_connections_per_ip)

    def connections_of(self, listener: str) -> int:
        """The connection limit of a listener: its own limit, else the broker's."""
        return self.listener_limits.get(f"{LISTENER_PREFIX}{listener.lower()}.max.connections", self.max_connections)

    def connection_rate_of(self, listener: str) -> int:
        """The limit on new connections to a listener per second: its own limit, else the broker's."""
        name = f"{LISTENER_PREFIX}{listener.lower()}.max.connection.creation.rate"
        return self.listener_limits.get(name, self.max_connection_creation_rate)

    def text(self, name: str) -> str | None:
        """The effective value of a broker setting, as text; None if it has no value."""
        for layer in (self.dynamic_broker, self.dynamic_default, self.static):
            if name in layer:
                return layer[name]
        return BROKER_KEYS[name].default

    def topic_default(self, name: str) -> str | None:
        """The default of a topic setting: the broker's synonym, else Kafka's default."""
        for synonym, factor in TOPIC_SYNONYMS.get(name, ()):
            text = self.text(synonym)
            if text is not None:
                return topic_text(name, text, factor)
        return TOPIC_KEYS[name].default

    def check_topic_default(self, name: str) -> None:
        """Raise ConfigError if the broker's settings give topics an invalid default."""
        for synonym, factor in TOPIC_SYNONYMS.get(name, ()):
            text = self.text(synonym)
            if text is not None:
                reason = TOPIC_KEYS[name].refusal(topic_text(name, text, factor))
                if reason is not None:
                    raise ConfigError(f"Invalid value {text} for configuration {synonym}: {reason}")
                return

    def log_settings(self, topic_overrides: Mapping[str, str] = NO_SETTINGS, *, replayed: bool = False) -> LogSettings:
        """The settings of a log whose topic has these overrides. Equal overrides share one object. Never raises.

        An override that cannot be applied is ignored.
        """
        cached = self._log_settings.get(asked := (frozenset(topic_overrides.items()), replayed))
        if cached is not None:
            return cached
        values: dict[str, Any] = {}
        overrides = usable(TOPIC, topic_overrides)
        names = {f.name for f in dataclasses.fields(LogSettings)}
        for key in TOPIC_KEYS.values():
            if key.attribute in names:
                text = overrides.get(key.name)
                values[key.attribute] = key.parse(text if text is not None else self.topic_default(key.name))
        for name in SETS:
            values[name] = frozenset(values[name])
        small = overrides.get("internal.segment.bytes")
        if small is not None:
            values["segment_bytes"] = TOPIC_KEYS["internal.segment.bytes"].parse(small)
        values["record_validation_full"] = self.record_validation == "full"
        fsync_always = self.fsync == "always" or min(values["flush_messages"], values["flush_ms"]) < LONG_MAX
        settings = LogSettings(**values, fsync_always=fsync_always, replayed=replayed)
        if len(self._log_settings) < CACHED_LOG_SETTINGS_MAX:
            self._log_settings[asked] = settings
        return settings


def _changeable(settings: Mapping[str, str], of_one_broker: frozenset[str] = frozenset()) -> dict[str, str]:
    """The settings that can change while the broker runs, `of_one_broker` included. Other settings of single brokers,
    of listeners and logins, take effect at the next start."""
    return {
        name: text
        for name, text in settings.items()
        if (name in CHANGEABLE_KEYS and CHANGEABLE_KEYS[name].mode is Mode.CLUSTER_WIDE)
        or name in of_one_broker
        or is_listener_limit(name)
        or is_listener_store(name)
    }


def _directory(path: str) -> str:
    return normpath(path.replace("\\", "/") if sys.platform == "win32" else path)


def _cordoned(named: tuple[str, ...], paths: tuple[str, ...]) -> frozenset[str]:
    """The cordoned ones of these log directories (KIP-1066)."""
    return frozenset(paths) if "*" in named else frozenset(_directory(path) for path in named) & frozenset(paths)


def _derived(values: dict[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Settings whose parsing needs other settings: listeners, directories, voters."""
    node_id = values["node_id"]
    if "broker.id" in texts and values["broker_id"] != node_id:
        raise ConfigError(f"broker.id={values['broker_id']} contradicts node.id={node_id}; remove broker.id")
    log_dirs = values["log_dirs"] or values["log_dir"]
    if not log_dirs or "" in log_dirs:
        raise ConfigError("log.dirs: it needs at least one directory, and no empty entries")
    if values["replica_selector_class"] not in (None, *SELECTORS):
        raise ConfigError(
            f"replica.selector.class: {values['replica_selector_class']} is not known here; there are "
            + " and ".join(SELECTORS)
        )
    return {
        **parse_authorization(values["authorizer_class_name"], texts),
        "delegation_tokens": token_settings(values),
        "log_dirs": (paths := tuple(dict.fromkeys(_directory(path) for path in log_dirs))),
        "cordoned_log_dirs": _cordoned(values["cordoned_log_dirs"], paths),
        "metadata_log_dir": _directory(values["metadata_log_dir"] or log_dirs[0]),
        "max_connections_per_ip_overrides": read_host_limits(values["max_connections_per_ip_overrides"]),
        "listener_limits": read_listener_limits(texts),
        **_quorum(values, read_endpoints(values, texts)),
    }


def _quorum(values: dict[str, Any], endpoints: dict[str, Any]) -> dict[str, Any]:
    voters = parse_voters(values["controller_quorum_voters"])
    servers = parse_servers(values["controller_quorum_bootstrap_servers"])
    check_roles(values["process_roles"], values["node_id"], voters, servers, endpoints["controller_listeners"])
    return {
        "controller_listener_names": tuple(name.upper() for name in values["controller_listener_names"]),
        "controller_quorum_voters": voters,
        "controller_quorum_bootstrap_servers": servers,
        "initial_controllers": _initial(values, voters, servers),
        **endpoints,
    }


def _initial(
    values: dict[str, Any], voters: tuple[StaticVoter, ...], servers: tuple[ControllerServer, ...]
) -> tuple[InitialController, ...] | None:
    text, said = values["initial_controllers"], INITIAL
    if text is None and values["controller_quorum_auto_join_enable"]:
        text, said = NO_CONTROLLERS, "controller.quorum.auto.join.enable"
    return parse_initial(text, values["node_id"], values["process_roles"], voters, servers, said)
