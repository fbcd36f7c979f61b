"""Chooses the brokers of new replicas: brokers lead in turn, and the replicas of one partition are in different
racks."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple


class Candidate(NamedTuple):
    """A registered broker. A fenced broker is assigned replicas only if there are too few live brokers."""

    node_id: int
    rack: str | None
    fenced: bool = False


def place_replicas(
    candidates: Sequence[Candidate], count: int, replication_factor: int, random: Random
) -> list[tuple[int, ...]]:
    """The brokers of `count` partitions, leader first. The first broker is random, so that many topics with one
    partition each are spread over the brokers as well. The caller ensures that there is a live candidate, and that
    there are at least `replication_factor` candidates.
    """
    if len(candidates) == replication_factor == 1 and not candidates[0].fenced:
        return [(candidates[0].node_id,)] * count
    live = _interleave([candidate for candidate in candidates if not candidate.fenced], random)
    spare = _interleave([candidate for candidate in candidates if candidate.fenced], random)
    assert live, "a leader must be live"
    assert len(candidates) >= replication_factor, "too few brokers"
    first = random.randrange(len(live))
    skip = random.randrange(len(live))
    return [
        _of_one(live, spare, first + index, skip + index // len(live), replication_factor) for index in range(count)
    ]


def _of_one(
    live: Sequence[Candidate], spare: Sequence[Candidate], first: int, skip: int, replication_factor: int
) -> tuple[int, ...]:
    """The brokers of one partition. Each partition has the next broker as its leader; after a full round, the choice of
    followers also moves on by one broker."""
    leader = live[first % len(live)]
    if replication_factor == 1:
        return (leader.node_id,)
    others = len(live) - 1
    order = [live[(first + 1 + (skip + step) % others) % len(live)] for step in range(others)]
    order.extend(spare)
    chosen = [leader.node_id]
    racks = {leader.rack}
    left = []
    for candidate in order:
        if len(chosen) == replication_factor:
            return tuple(chosen)
        if candidate.rack in racks or candidate.fenced:
            left.append(candidate)
        else:
            chosen.append(candidate.node_id)
            racks.add(candidate.rack)
    return (*chosen, *(candidate.node_id for candidate in left[: replication_factor - len(chosen)]))


def _interleave(candidates: Sequence[Candidate], random: Random) -> list[Candidate]:
    """Order the brokers so that they are from each rack in turn, beginning with a random one."""
    by_rack: dict[str | None, list[Candidate]] = {}
    for candidate in candidates:
        by_rack.setdefault(candidate.rack, []).append(candidate)
    racks = list(by_rack.values())
    random.shuffle(racks)
    for rack in racks:
        random.shuffle(rack)
    rounds = max((len(rack) for rack in racks), default=0)
    return [rack[step] for step in range(rounds) for rack in racks if step < len(rack)]
