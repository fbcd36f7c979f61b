"""What the cluster of a test is like, and its nodes, as processes or as threads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kpybroker.broker import served_versions
from kpybroker.cli.local_cluster import BROKERS_MAX, DEV_DEFAULTS, LocalClusterOptions, LocalNode, Ports, plan
from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError
from kpybroker.testing.kafka import as_setting
from kpybroker.testing.node import ClusterNode

PORT_MAX = 65535
DATA_DIR_SETTINGS = ("log.dir", "log.dirs")
IDENTITY_SETTINGS = (
    "node.id", "broker.id", "process.roles", "controller.quorum.voters", "controller.quorum.bootstrap.servers",
)  # fmt: skip
"""What the test kit sets: the brokers have the ids from 1 on, and all are controllers."""
Versions = Mapping[str, tuple[int, int] | None]
_PORT = re.compile(r":(\d+)")


class ClusterPlan(NamedTuple):
    """The arguments of Cluster, checked."""

    brokers: int
    settings: Mapping[str, str]
    is_secure: bool
    is_in_thread: bool
    port: int

    @classmethod
    def of(
        cls,
        brokers: int,
        config: Mapping[str, object] | None,
        *,
        secure: bool,
        in_thread: bool,
        api_versions: Versions | None,
        port: int,
    ) -> ClusterPlan:
        """The plan for these arguments of Cluster. Raises TypeError and ValueError for invalid ones."""
        for name, value in (("brokers", brokers), ("port", port)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}={value!r}: give a number, such as {name}={3 if name == 'brokers' else 9092}")
        for name, value in (("secure", secure), ("in_thread", in_thread)):
            if not isinstance(value, bool):
                raise TypeError(f"{name}={value!r}: give True or False")
        if not 0 <= port <= PORT_MAX:
            raise ValueError(f"port={port}: must be from 0 to {PORT_MAX}")
        if not 1 <= brokers <= BROKERS_MAX:
            raise ValueError(f"brokers={brokers}: must be from 1 to {BROKERS_MAX}")
        if secure and brokers > 1:
            raise ValueError("secure=True is for one broker; for several, set TLS and logins in config")
        settings, limits = _checked(config), _limited(api_versions)
        if limits and served_versions.SETTING in settings:
            raise ValueError(f"api_versions and the setting {served_versions.SETTING} contradict each other; give one")
        return cls(brokers, settings | limits, secure, in_thread, port)

    def nodes(self, directory: Path, ports: Ports) -> list[PlannedNode]:
        """The nodes with their data below `directory`. Raises ConfigError for invalid settings."""
        if self.brokers == 1:
            return [self._only_node(directory, ports)]
        wanted = LocalClusterOptions(self.brokers, self.port, None, self.settings)
        planned = []
        for local in plan(directory, wanted, DEV_DEFAULTS, ports):
            assert local.config, "invalid settings are refused here"
            local.write()
            listening = [int(port) for port in _PORT.findall(local.properties["listeners"])]
            planned.append(PlannedNode(self._one_of_several(directory, local), listening))
        return planned

    def _one_of_several(self, directory: Path, local: LocalNode) -> ClusterNode:
        log = _log_of(directory, local.node_id)
        if not self.is_in_thread:
            from kpybroker.testing.node_process import NodeProcess

            return NodeProcess(local.node_id, ["serve", "--config", str(local.properties_file)], log)
        from kpybroker.testing.node_thread import NodeThread

        def configure(local: LocalNode) -> tuple[BrokerConfig, Path | None]:
            return local.config, None

        return NodeThread(local.node_id, partial(configure, local), log)

    def _only_node(self, directory: Path, ports: Ports) -> PlannedNode:
        port, data, log = ports.hold(self.port), directory / "data", _log_of(directory, 1)
        if not self.is_in_thread:
            from kpybroker.testing.node_process import NodeProcess

            given = [part for name, value in self.settings.items() for part in ("--set", f"{name}={value}")]
            command = ["dev", "--port", str(port), "--data-dir", str(data)]
            return PlannedNode(NodeProcess(1, [*command, *(["--secure"] if self.is_secure else []), *given], log), [])
        from kpybroker.cli.serving import configure_one
        from kpybroker.testing.node_thread import NodeThread

        def configure() -> tuple[BrokerConfig, Path | None]:
            wanted = LocalClusterOptions(1, port, None, self.settings)
            config, files = configure_one(wanted, data, is_secure=self.is_secure)
            return config, None if files is None else files.client

        return PlannedNode(NodeThread(1, configure, log), [])


class PlannedNode(NamedTuple):
    """A node, and the ports of its listeners if there are other brokers, which can be cut off from them."""

    node: ClusterNode
    ports: list[int]


def _log_of(directory: Path, node_id: int) -> Path:
    return directory / f"node-{node_id}.log"


def _checked(config: Mapping[str, object] | None) -> dict[str, str]:
    """The settings as text. Raises TypeError, ValueError."""
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(
            f"config is a mapping of settings, such as {{'num.partitions': 3}}, not {type(config).__name__}"
        )
    settings = {}
    for name, value in (config or {}).items():
        if not isinstance(name, str) or not name.strip() or "=" in name:  # it may have a secret, so it is not shown
            raise ValueError("cannot read the name of a setting: write config={'num.partitions': 3}")
        if name in DATA_DIR_SETTINGS:
            raise ValueError(f"{name}: the broker has a temporary directory, and no other can be set")
        if name in IDENTITY_SETTINGS:
            raise ValueError(
                f"{name}: the brokers have the ids from 1 on, and are the controllers; nothing else can be set"
            )
        settings[name] = as_setting(value)
    return settings


def _limited(api_versions: Versions | None) -> dict[str, str]:
    """The setting for these versions, if there are any. Raises TypeError, ValueError."""
    if api_versions is not None and not isinstance(api_versions, Mapping):
        raise TypeError(f"api_versions is a mapping, such as {{'Fetch': (4, 11)}}, not {type(api_versions).__name__}")
    for name, versions in (api_versions or {}).items():
        if not isinstance(name, str):
            raise TypeError(f"api_versions has the key {name!r}: give the name of a request, such as 'Fetch'")
        if versions is not None and not (
            isinstance(versions, tuple) and len(versions) == 2 and all(type(each) is int for each in versions)
        ):
            raise TypeError(f"api_versions[{name!r}] is {versions!r}: give (lowest, highest), or None for none")
    if not api_versions:
        return {}
    try:
        return {served_versions.SETTING: served_versions.as_setting(api_versions)}
    except ConfigError as error:
        raise ValueError(f"api_versions: {error}") from None
