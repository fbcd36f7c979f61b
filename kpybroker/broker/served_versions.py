"""The versions of the APIs that clients may use: all, or only those that `kpybroker.api.versions` leaves.

With this setting, a broker behaves like an older one, so that the fallback of a client can be tested. Nodes
of the cluster and the test kit may use all versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kpybroker.errors import ConfigError
from kpybroker.similar_names import meant
from kpybroker.wire.api import API, Api, Audience, by_name
from kpybroker.wire.recording import KIT_CLIENT_ID

SETTING = "kpybroker.api.versions"
NONE = "none"
Versions = tuple[int, int]
_LIMIT = re.compile(r"(?P<api>\w+):(?:none|(?P<low>\d{1,4})-(?P<high>\d{1,4}))")
_NODE = re.compile(r"(broker|raft-client)-\d+(-.*)?|" + KIT_CLIENT_ID)
"""The client ids of nodes and of the test kit."""


class ServedVersions:
    """The limits by API; None for an API that is not served at all."""

    def __init__(self, limits: Mapping[Api, Versions | None]) -> None:
        self._limits = limits

    @classmethod
    def of(cls, texts: Iterable[str]) -> ServedVersions:
        """The limits in the elements of the setting, such as `Fetch:4-11` and `ShareFetch:none`. Raises ConfigError."""
        limits: dict[Api, Versions | None] = {}
        for text in texts:
            found = _LIMIT.fullmatch(text)
            if found is None:
                raise ConfigError(f"{SETTING}={text}: write API:LOWEST-HIGHEST or API:none, such as Fetch:4-11")
            low, high = found["low"], found["high"]
            row, versions = limit_of(found["api"], None if low is None else (int(low), int(high)))
            limits[row] = versions
        return cls(limits)

    def advertised(self, row: Api, client_id: str | None) -> Versions | None:
        """The versions of an API in the response to this client's ApiVersions request; None if it is left out."""
        return self._limits[row] if self._is_limited(row, client_id) else row.advertised

    def accepted(self, row: Api, client_id: str | None) -> Versions:
        """The versions of an API that this client may send. An API that is not served has the range 0 to -1."""
        if not self._is_limited(row, client_id):
            return row.min, row.max
        low, high = self._limits[row] or (0, -1)
        return max(low, row.min) if high >= 0 else low, high

    def _is_limited(self, row: Api, client_id: str | None) -> bool:
        return row in self._limits and not _NODE.fullmatch(client_id or "")


def limit_of(name: str, versions: Versions | None) -> tuple[Api, Versions | None]:
    """The API with this name and the versions, if it can be limited to them. Raises ConfigError otherwise, with the
    most similar name or the versions that are served."""
    known = [api.name for api in API if api.audience is Audience.CLIENT]
    if name not in known:
        raise ConfigError(f"no client sends {name!r} requests{meant(name, known)}")
    row = by_name[name]
    low, high = row.advertised
    if versions is not None and not low <= versions[0] <= versions[1] <= high:
        raise ConfigError(f"{name} {versions[0]} to {versions[1]}: give versions from {low} to {high}")
    if versions is not None and versions[1] < row.min:
        raise ConfigError(f"{name} {versions[0]} to {versions[1]}: this broker serves it only from {row.min} on")
    if versions is None and name == "ApiVersions":
        raise ConfigError("ApiVersions: clients need it to find out what is served; limit its versions instead")
    return row, versions


def as_setting(limits: Mapping[str, tuple[int, int] | None]) -> str:
    """The value of the setting for limits by name. Raises ConfigError."""
    found = [limit_of(name, versions) for name, versions in limits.items()]
    return ",".join(
        f"{row.name}:{NONE if versions is None else f'{versions[0]}-{versions[1]}'}" for row, versions in found
    )
