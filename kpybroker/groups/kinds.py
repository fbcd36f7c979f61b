"""Registers all kinds of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kpybroker.groups.classic.groups import ClassicGroups
from kpybroker.groups.consumer.groups import ConsumerGroups
from kpybroker.groups.ground.kind import GroupKind, GroupKinds, KindContext
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.timers import Timers
from kpybroker.groups.share.groups import ShareGroups
from kpybroker.groups.streams.groups import StreamsGroups
from kpybroker.metadata.image import Image

KINDS: tuple[type[GroupKind], ...] = (ClassicGroups, ConsumerGroups, ShareGroups, StreamsGroups)
"""Each kind may use the kinds before it."""
BY_RECORD: dict[int, type[GroupKind]] = {kind: each for each in KINDS for kind in each.record_kinds}
"""The kind of group that reads each kind of record."""
assert len(BY_RECORD) == sum(len(each.record_kinds) for each in KINDS), "two kinds of group read the same records"


def group_kinds(
    registered: Sequence[type[GroupKind]],
    settings: GroupSettings,
    timers: Timers,
    new_id: Callable[[], str],
    image: Callable[[], Image],
) -> GroupKinds:
    """Create the kinds of one machine."""
    context = KindContext(GroupKinds(settings), settings, timers, new_id, image)
    for kind in registered:
        context.kinds.add(kind(context))
    return context.kinds
