"""Reads the settings of one component into a dataclass whose fields name the broker settings.

A setting is declared once, in the table of keys; a component takes the name, type and default of a setting from there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from kpybroker.config.broker_config import BrokerConfig
from kpybroker.config.broker_keys import BROKER_KEYS

T = TypeVar("T")


def _as_it_is(value: Any) -> Any:
    return value


def setting(name: str, read: Callable[[Any], Any] = _as_it_is) -> Any:
    """A field of a component's dataclass: the broker setting `name`, passed through `read`."""
    key = BROKER_KEYS[name]
    return dataclasses.field(
        default=read(key.default_value), metadata={"read": lambda config: read(getattr(config, key.attribute))}
    )


def read_settings(cls: type[T], config: BrokerConfig, **others: Any) -> T:
    """An object of `cls` with values from `config`; `others` are fields that are not settings."""
    assert dataclasses.is_dataclass(cls)
    found = {f.name: f.metadata["read"](config) for f in dataclasses.fields(cls) if "read" in f.metadata}
    return cls(**found, **others)
