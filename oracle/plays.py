"""The sources of the golden vectors: plays of scenes, each on a separate node."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from kpybroker.wire.api import API, Api
from oracle.acl_scenes import EVERYBODY, SUPER_USER, AclScenes, AuthorizedScenes
from oracle.cluster_scenes import ClusterScenes
from oracle.directory_scenes import DirectoryScenes
from oracle.group_scenes import SETTINGS, GroupScenes
from oracle.marker_scenes import MarkerScenes
from oracle.quorum_scenes import QuorumScenes
from oracle.quota_scenes import QuotaScenes
from oracle.scenes import Scenes
from oracle.security_scenes import SecurityScenes
from oracle.share_scenes import SETTINGS as SHARE_SETTINGS
from oracle.share_scenes import ShareScenes
from oracle.streams_scenes import SETTINGS as STREAMS_SETTINGS
from oracle.streams_scenes import StreamsScenes
from oracle.transaction_scenes import TransactionScenes
from oracle.txn_offset_scenes import TxnOffsetScenes
from oracle.voter_scenes import VoterScenes

Ask = Callable[..., Any]
"""ask(name, version, request, note="") -> response; kept when there is a note"""

AT_CONTROLLER = "api_versions_at_controller"
"""The file with the ApiVersions responses of a controller."""


class Play(NamedTuple):
    """Scenes that are played one after the other on one node with these properties."""

    name: str
    scenes: tuple[type[Any], ...]
    properties: Mapping[str, str]

    @property
    def asks_controller(self) -> bool:
        """Whether any of the scenes also sends requests to the controller's listener."""
        return any(map(_asks_controller, self.scenes))

    def perform(self, ask: Ask, ask_controller: Ask | None = None) -> None:
        """Play the scenes in their order."""
        for scenes in self.scenes:
            (scenes(ask, ask_controller) if _asks_controller(scenes) else scenes(ask)).all()

    def may_ask(self, api: Api) -> bool:
        """Whether the API is named in the source of the scenes, or of their imports."""
        modules = _with_imports(sys.modules[scenes.__module__] for scenes in self.scenes)
        return any(api.name in _strings(module) for module in modules)


PLAYS = (
    Play(
        "clients",
        (Scenes, MarkerScenes, TransactionScenes, TxnOffsetScenes),
        {"offsets.topic.num.partitions": "4"},
    ),
    Play("cluster", (ClusterScenes, QuotaScenes, SecurityScenes), {}),
    Play("directories", (DirectoryScenes,), {}),
    Play("quorum", (QuorumScenes, VoterScenes), {}),
    Play("groups", (GroupScenes,), SETTINGS),
    Play("shares", (ShareScenes,), SHARE_SETTINGS),
    Play("streams", (StreamsScenes,), STREAMS_SETTINGS),
    Play("acls", (AclScenes,), SUPER_USER),
    Play("authorized operations", (AuthorizedScenes,), EVERYBODY),
)
"""All plays. The vectors of an API are the concatenated vectors of the plays, in this order."""


def plays_of(apis: Iterable[Api]) -> tuple[Play, ...]:
    """The plays that may record one of these."""
    wanted = tuple(apis)
    return tuple(play for play in PLAYS if any(map(play.may_ask, wanted)))


def apis_named(names: Iterable[str]) -> list[Api]:
    """The APIs with these names, each spelled as in the Api table or as its file: DescribeProducers or
    describe_producers.

    Raises ValueError, with the list of all names, if a name is unknown.
    """
    known = {name: api for api in API for name in (api.name, api.module)}
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = ", ".join(sorted(api.name for api in API))
        raise ValueError(f"no such API: {', '.join(unknown)}; there are {listed}")
    return [known[name] for name in names]


def file_of(api: Api, *, at_controller: bool) -> str:
    """The name, without the suffix, of the file for requests to a broker, or for requests to the controller's
    listener."""
    return AT_CONTROLLER if at_controller and api.name == "ApiVersions" else api.module


def _asks_controller(scenes: type[Any]) -> bool:
    return "ask_controller" in inspect.signature(scenes).parameters


def _with_imports(modules: Iterable[ModuleType]) -> list[ModuleType]:
    """These modules, and all modules of this package that they import."""
    found: list[ModuleType] = []
    left = list(modules)
    while left:
        module = left.pop()
        if module not in found:
            found.append(module)
            values = vars(module).values()
            names = {getattr(value, "__module__", None) for value in values}
            left += [sys.modules[name] for name in names if name is not None and name.startswith("oracle.")]
    return found


@cache
def _strings(module: ModuleType) -> frozenset[str]:
    return frozenset(re.findall(r'"(\w+)"', inspect.getsource(module)))
