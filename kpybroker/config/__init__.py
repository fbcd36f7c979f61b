"""Settings: all keys of Kafka 4.3 with type, default and range, and the typed views that the broker reads."""

from kpybroker.config.broker_config import BrokerConfig
from kpybroker.config.listeners import Endpoint
from kpybroker.config.log_settings import LogSettings
from kpybroker.config.parsing import parse_config
from kpybroker.config.properties import parse_properties, parse_setting
from kpybroker.config.quorum import StaticVoter

__all__ = [
    "BrokerConfig",
    "Endpoint",
    "LogSettings",
    "StaticVoter",
    "parse_config",
    "parse_properties",
    "parse_setting",
]
