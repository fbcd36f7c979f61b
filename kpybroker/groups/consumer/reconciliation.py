"""From what a member has to what it shall have, one safe step at a time (KIP-848, "Reconciliation").

First it gives up what it shall not have and says so; only then does its epoch move on. What it shall have and another
member still has, it gets when that one has given it up. So no partition is ever with two members.
"""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.groups.consumer.assignors import Place
from kpybroker.groups.consumer.group import NOTHING, Current, MemberState, ModernGroup, ModernMember


def reconciled(
    group: ModernGroup,
    member: ModernMember,
    wanted: Mapping[bytes, int],
    owned: frozenset[Place] | None,
) -> Current:
    """What the member has after this heartbeat. `wanted` are the ids of the topics it subscribes to; `owned` is what it
    says it has, None where it does not say."""
    current = member.current
    target = frozenset(place for place in group.targets.get(member.member_id, NOTHING) if place[0] in wanted)
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if not _given_up(current.revoking, owned):
            return _without_unwanted(current, wanted)
    elif current.state is MemberState.STABLE and current.epoch == group.assignment_epoch:
        if all(place[0] in wanted for place in current.assigned):
            return current
        target = target.intersection(current.assigned)
    return _next(group, member, target, owned)


def _next(
    group: ModernGroup, member: ModernMember, target: frozenset[Place], owned: frozenset[Place] | None
) -> Current:
    current = member.current
    kept = {place: since for place, since in current.assigned.items() if place in target}
    revoking = {place: since for place, since in current.assigned.items() if place not in target}
    if revoking and not _given_up(revoking, owned):
        return Current(current.epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    epoch = group.assignment_epoch
    wanted = target.difference(kept)
    free = sorted(place for place in wanted if group.is_free(place, member))
    state = MemberState.STABLE if len(free) == len(wanted) else MemberState.UNRELEASED_PARTITIONS
    return Current(epoch, current.epoch, state, {**kept, **dict.fromkeys(free, epoch)})


def _without_unwanted(current: Current, wanted: Mapping[bytes, int]) -> Current:
    """It has not answered yet; topics that it has left meanwhile it shall give up too."""
    more = {place: since for place, since in current.assigned.items() if place[0] not in wanted}
    if not more:
        return current
    return current._replace(
        assigned={place: since for place, since in current.assigned.items() if place not in more},
        revoking={**current.revoking, **more},
    )


def _given_up(revoking: Mapping[Place, int], owned: frozenset[Place] | None) -> bool:
    return owned is not None and owned.isdisjoint(revoking)
