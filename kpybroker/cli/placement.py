"""Places the replicas of a topic's partitions evenly over brokers, with as few moves as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def place(
    current: Mapping[int, Sequence[int]],
    brokers: Sequence[int],
    replicas: int | None = None,
    racks: Mapping[int, str | None] | None = None,
) -> dict[int, list[int]]:
    """New replicas by partition, the preferred leader first.

    `current`: replicas by partition. `brokers`: the brokers that may hold replicas. `replicas`: the new number of
    replicas of each partition (None: unchanged). `racks`: racks by broker; replicas of a partition are placed on
    different racks if possible. Raises ValueError for more replicas than brokers.
    """
    racks = racks or {}
    wanted = {index: replicas or len(held) for index, held in current.items()}
    if max(wanted.values(), default=0) > len(brokers):
        raise ValueError(f"{max(wanted.values())} replicas need as many brokers; there are {len(brokers)}")
    new = {index: [each for each in current[index] if each in brokers][: wanted[index]] for index in sorted(current)}
    load = Counter(dict.fromkeys(brokers, 0))
    load.update(broker for held in new.values() for broker in held)
    for index, held in new.items():
        while len(held) < wanted[index]:
            free = [broker for broker in brokers if broker not in held]
            chosen = min(free, key=lambda each: (_shares_rack(each, held, racks), load[each], each))
            held.append(chosen)
            load[chosen] += 1
    while _move_one(new, load, racks):
        pass
    return _with_leaders(new)


def _shares_rack(broker: int, held: Sequence[int], racks: Mapping[int, str | None]) -> bool:
    rack = racks.get(broker)
    return rack is not None and any(racks.get(each) == rack for each in held)


def _move_one(placed: dict[int, list[int]], load: Counter[int], racks: Mapping[int, str | None]) -> bool:
    """Move one replica to a broker that has at least two fewer. Returns False if there is no such move."""
    by_load = sorted(load, key=lambda each: (load[each], each))
    for high in reversed(by_load):
        for low in by_load:
            if load[high] - load[low] < 2:
                break
            for held in placed.values():
                others = [each for each in held if each != high]
                if high not in held or low in held or _shares_rack(low, others, racks):
                    continue
                held[held.index(high)] = low
                load[high] -= 1
                load[low] += 1
                return True
    return False


def _with_leaders(placed: dict[int, list[int]]) -> dict[int, list[int]]:
    """Order each partition's replicas so that preferred leaders are spread evenly. The first replica stays first if
    possible."""
    leads: Counter[int] = Counter()
    most = -(-len(placed) // len({broker for held in placed.values() for broker in held} or {0}))
    for index in sorted(placed):
        held = placed[index]
        leader = held[0] if leads[held[0]] < most else min(held, key=lambda each: leads[each])
        leads[leader] += 1
        placed[index] = [leader, *(broker for broker in held if broker != leader)]
    return placed
