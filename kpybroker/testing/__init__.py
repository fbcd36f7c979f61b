"""Real brokers for tests of applications that use Kafka: `Broker`, `Cluster`, and the fixtures of the pytest plugin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kpybroker.client.recorded import RecordedRequest as RecordedRequest
    from kpybroker.testing.cluster import Broker as Broker
    from kpybroker.testing.cluster import Cluster as Cluster
    from kpybroker.testing.kafka import Kafka as Kafka
    from kpybroker.testing.node import BrokerStartError as BrokerStartError
    from kpybroker.testing.operations import ReceivedRecord as ReceivedRecord
    from kpybroker.testing.recording import Recording as Recording
    from kpybroker.testing.snapshot import Snapshot as Snapshot

_MODULES = {
    "Broker": "cluster",
    "BrokerStartError": "node",
    "Cluster": "cluster",
    "Kafka": "kafka",
    "ReceivedRecord": "operations",
    "RecordedRequest": "recording",
    "Recording": "recording",
    "Snapshot": "snapshot",
}
__all__ = [
    "Broker",
    "BrokerStartError",
    "Cluster",
    "Kafka",
    "ReceivedRecord",
    "RecordedRequest",
    "Recording",
    "Snapshot",
]


def __getattr__(name: str) -> object:
    """Import a class at its first use: pytest loads this package in every session, even if no test uses a broker."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
