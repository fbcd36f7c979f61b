"""The kinds of group: the one place where a new one is registered."""

from __future__ import annotations

from collections.abc import Callable

from kpybroker.groups.classic.groups import ClassicGroups
from kpybroker.groups.consumer.groups import ConsumerGroups
from kpybroker.groups.ground.kind import GroupKind, GroupKinds
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.timers import Timers
from kpybroker.groups.unserved import UnservedGroups
from kpybroker.metadata.image import Image

KINDS: tuple[type[GroupKind], ...] = (ClassicGroups, ConsumerGroups, UnservedGroups)
MakeKinds = Callable[[GroupSettings, Timers, Callable[[], str], Callable[[], Image]], GroupKinds]
BY_RECORD: dict[int, type[GroupKind]] = {kind: each for each in KINDS for kind in each.record_kinds}
"""Kind of record -> the kind of group that reads it."""


def group_kinds(
    settings: GroupSettings, timers: Timers, new_id: Callable[[], str], image: Callable[[], Image]
) -> GroupKinds:
    """The kinds of one machine."""
    kinds = GroupKinds(settings)
    classic = ClassicGroups(kinds, settings, timers, new_id)
    for kind in (classic, ConsumerGroups(kinds, classic, settings, timers, image), UnservedGroups()):
        kinds.add(kind)
    return kinds
