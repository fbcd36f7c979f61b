"""Moves a member from its current to its target assignment, one safe step at a time (KIP-848, "Reconciliation").

First, the member revokes partitions and confirms the revocation; only then does its epoch advance. It receives a
partition of another member only after that member has revoked it, so a partition never has two owners.
"""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.groups.consumer.group import NOTHING, ConsumerGroup, ConsumerMember, CurrentAssignment, MemberState
from kpybroker.topics import TopicIdPartition


def reconciled(
    group: ConsumerGroup,
    member: ConsumerMember,
    wanted: Mapping[bytes, int],
    owned: frozenset[TopicIdPartition] | None,
) -> CurrentAssignment:
    """The member's assignment after this heartbeat. `wanted`: the ids of the topics to which it subscribes; `owned`:
    the partitions in its request, None if the request has none."""
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
    group: ConsumerGroup,
    member: ConsumerMember,
    target: frozenset[TopicIdPartition],
    owned: frozenset[TopicIdPartition] | None,
) -> CurrentAssignment:
    current = member.current
    kept = {place: since for place, since in current.assigned.items() if place in target}
    revoking = {place: since for place, since in current.assigned.items() if place not in target}
    if revoking and not _given_up(revoking, owned):
        return CurrentAssignment(current.epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    epoch = group.assignment_epoch
    wanted = target.difference(kept)
    free = sorted(place for place in wanted if group.is_free(place, member))
    state = MemberState.STABLE if len(free) == len(wanted) else MemberState.UNRELEASED_PARTITIONS
    return CurrentAssignment(epoch, current.epoch, state, {**kept, **dict.fromkeys(free, epoch)})


def _without_unwanted(current: CurrentAssignment, wanted: Mapping[bytes, int]) -> CurrentAssignment:
    """The assignment of a member that has not yet confirmed its revocation. It must also revoke partitions of topics
    from which it has unsubscribed in the meantime."""
    more = {place: since for place, since in current.assigned.items() if place[0] not in wanted}
    if not more:
        return current
    return current._replace(
        assigned={place: since for place, since in current.assigned.items() if place not in more},
        revoking={**current.revoking, **more},
    )


def _given_up(revoking: Mapping[TopicIdPartition, int], owned: frozenset[TopicIdPartition] | None) -> bool:
    return owned is not None and owned.isdisjoint(revoking)
