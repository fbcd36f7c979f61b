"""Adds controllers to the voters of a cluster's metadata quorum and removes them (KIP-853), with Kafka's tool."""

from __future__ import annotations

import re
from pathlib import Path

from compat_tests.changing import until
from oracle.cluster import Cluster
from oracle.tools import Ran

TOOL = "kafka-metadata-quorum"


def settings_of(cluster: Cluster, node_id: int) -> Path:
    """The node's settings as a file: the tool reads id, listeners and directory of the controller from it."""
    node = cluster.nodes[node_id]
    path = node.directory / "controller.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in node.properties.items() if "kpybroker" not in name))
    return path


def directory_id(cluster: Cluster, node_id: int) -> str:
    """The id in a node's meta.properties, in base64."""
    text = (cluster.nodes[node_id].data / "meta.properties").read_text()
    return str(re.findall(r"^directory.id=(.*)$", text, re.MULTILINE)[0])


def add(cluster: Cluster, node_id: int) -> Ran:
    return cluster.tool(TOOL, "--command-config", str(settings_of(cluster, node_id)), "add-controller")


def remove(cluster: Cluster, node_id: int, directory: str) -> Ran:
    voter = ("--controller-id", str(node_id), "--controller-directory-id", directory)
    return cluster.tool(TOOL, "remove-controller", *voter)


def grow(cluster: Cluster, node_id: int) -> None:
    """Add a voter as soon as it has caught up."""
    until(lambda: add(cluster, node_id).code == 0, f"{node_id} is added")
