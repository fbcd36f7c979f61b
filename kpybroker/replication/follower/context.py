"""The data that all fetchers of a broker share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kpybroker.client.dialer import Dialer
from kpybroker.config import BrokerConfig
from kpybroker.metadata.image import Image
from kpybroker.replication.partition.throttle import Throttle


class FetcherContext(NamedTuple):
    """The node's id, its current settings, broker epoch and metadata, and the throttle for records that it fetches."""

    dialer: Dialer
    node_id: int
    config: Callable[[], BrokerConfig]
    broker_epoch: Callable[[], int]
    image: Callable[[], Image]
    throttle: Throttle
