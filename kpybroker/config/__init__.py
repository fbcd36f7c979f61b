"""Settings: every key of Kafka 4.3 with its type, default and range, and the typed views the broker reads."""

from kpybroker.config.log_settings import LogSettings

__all__ = ["LogSettings"]
