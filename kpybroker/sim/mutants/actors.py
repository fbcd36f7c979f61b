"""Mutants that the invariants of actors must catch: broken admin requests, fetches from followers, quotas and more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpybroker.config.resource_type import ResourceType
from kpybroker.controller import configs, leadership, reassignment
from kpybroker.controller.leadership import Election, PartitionChange, Wanted
from kpybroker.groups.consumer.transitions import Transitions
from kpybroker.quotas.clients import ClientQuotas
from kpybroker.replication.node.lifecycle import Lifecycle
from kpybroker.serving.fetch.nearby import NearbyView
from kpybroker.serving.produce import append
from kpybroker.serving.produce.reply import ACKS_NONE
from kpybroker.sim.mutants.mutant import Mutant, Patch, force
from kpybroker.storage.log import admission, timestamps
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.reencoding import Opening, opened
from kpybroker.wire.records.batch import Batch, encode_batch, read_records

FIRST_MAX = 3
"""The most partitions that the topics of a seed have before CreatePartitions adds some."""
NODES = ("crash", "pause", "partition", "isolate", "slow_node")


def _ends_at_once(target: Any) -> None:
    if target.adding or target.removing:
        target.replicas = tuple(node_id for node_id in target.replicas if node_id not in target.removing)
        target.isr = tuple(node_id for node_id in target.isr if node_id in target.replicas) or target.replicas[:1]
        force(target, removing=(), adding=())


def _keeps_them_all(call_off: Callable[..., Wanted]) -> Callable[..., Wanted]:
    def stay(*asked: Any) -> Wanted:
        call_off(*asked)
        return Wanted(removing=(), adding=())

    return stay


def _shows_everything(look: Callable[..., Any]) -> Callable[..., Any]:
    def shown(view: NearbyView, want: Any, room_bytes: int, *, is_first: bool) -> Any:
        partition = want.partition or want.locate(view.find(want))
        log, agreed = partition.log, partition.log.high_watermark
        if not partition.leads:
            log.high_watermark = log.end
        try:
            return look(view, want, room_bytes, is_first=is_first)
        finally:
            log.high_watermark = agreed

    return shown


def _deletes_one_more(advance_start: Callable[[Log, int], None]) -> Callable[[Log, int], None]:
    def greedy(log: Log, offset: int) -> None:
        advance_start(log, min(offset + 1, log.high_watermark))

    return greedy


def _first_of_the_batch(batch: Batch, _: int | None, start: int) -> Any:
    return max(batch.base_offset, start), batch.base_timestamp, batch.leader_epoch
    yield  # makes this a generator, like the function it replaces


def _without_the_last(open_batch: Callable[..., Opening]) -> Callable[..., Opening]:
    def lossy(batch: Batch, codec: int, *rest: Any) -> Opening:
        records = list(read_records(batch))
        if codec == batch.codec or len(records) < 2:
            return (yield from open_batch(batch, codec, *rest))
        producer = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
        names = ("producer_id", "producer_epoch", "base_sequence")
        kept: Any = dict(zip(names, producer, strict=True))
        return Batch(memoryview(encode_batch(records[:-1], codec=codec, **kept)))

    return lossy


def _twice_where_nobody_asks(admit: Callable[..., Any]) -> Callable[..., Any]:
    def doubled(broker: Any, call: Any, acks: int, *rest: Any) -> Any:
        partition, batches = admit(broker, call, acks, *rest)
        if acks == ACKS_NONE:
            partition.append([Batch(memoryview(bytearray(batch.view))) for batch in batches], broker.world.wall_ms())
        return partition, batches

    return doubled


def _never_the_last(partitions: Callable[..., dict[bytes, int]]) -> Callable[..., dict[bytes, int]]:
    def fewer(steps: Transitions, names: frozenset[str]) -> dict[bytes, int]:
        return {topic_id: min(count, FIRST_MAX) for topic_id, count in partitions(steps, names).items()}

    return fewer


def _first_one_leads(clean_leader: Callable[..., int | None]) -> Callable[..., int | None]:
    def rash(change: PartitionChange, now: Any, target: Any, election: Election, online: frozenset[int]) -> int | None:
        first: int = target.replicas[0]
        if election is Election.PREFERRED and first in online:
            return first
        return clean_leader(change, now, target, election, online)

    return rash


def _changes_no_broker(difference: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def forgetful(kind: int, *rest: Any) -> list[Any]:
        return [] if kind == ResourceType.BROKER else difference(kind, *rest)

    return forgetful


async def _stays_away(_: Lifecycle) -> None:
    """Do nothing, so that an unregistered broker does not register again."""


ACTOR_MUTANTS = (
    Mutant(
        "a reassignment ends before the new replicas are in sync",
        (Patch(leadership, "_complete_reassignment", _ends_at_once),),
        NODES,
        brokers=3,
        actors=("reassignment",),
    ),
    Mutant(
        "a cancelled reassignment keeps its new replicas",
        (Patch(reassignment, "_call_off", _keeps_them_all(reassignment._call_off)),),
        NODES,
        brokers=3,
        actors=("reassignment",),
    ),
    Mutant(
        "followers serve records above the high watermark",
        (Patch(NearbyView, "look", _shows_everything(NearbyView.look)),),
        NODES,
        brokers=3,
        actors=("racks",),
    ),
    Mutant(
        "DeleteRecords deletes one record too many",
        (Patch(Log, "advance_start", _deletes_one_more(Log.advance_start)),),
        NODES,
        brokers=3,
        actors=("deletion",),
    ),
    Mutant(
        "a lookup by time finds the first record of a batch",
        (Patch(timestamps, "_record_in", _first_of_the_batch),),
        ("crash",),
        actors=("times",),
    ),
    Mutant(
        "a recompressed batch loses its last record",
        (Patch(admission, "opened", _without_the_last(opened)),),
        ("crash",),
        actors=("compression",),
    ),
    Mutant(
        "with acks=0, a batch is appended twice",
        (Patch(append, "admit", _twice_where_nobody_asks(append.admit)),),
        ("crash",),
        actors=("acks_none",),
    ),
    Mutant(
        "members are not assigned partitions that are created later",
        (Patch(Transitions, "partitions", _never_the_last(Transitions.partitions)),),
        NODES,
        brokers=3,
        actors=("partitions",),
    ),
    Mutant(
        "the preferred replica is elected although it is not in sync",
        (Patch(PartitionChange, "_clean_leader", _first_one_leads(PartitionChange._clean_leader)),),
        NODES,
        brokers=3,
        actors=("elections",),
    ),
    Mutant(
        "a broker setting is acknowledged but not stored",
        (Patch(configs, "_difference", _changes_no_broker(configs._difference)),),
        ("crash",),
        actors=("settings",),
    ),
    Mutant(
        "an unregistered broker does not register again",
        (Patch(Lifecycle, "_register_again", _stays_away),),
        ("pause",),
        brokers=3,
        actors=("unregistration",),
    ),
    Mutant(
        "clients over their quota are not throttled",
        (Patch(ClientQuotas, "charge", lambda *_: 0),),
        ("crash",),
        actors=("quotas",),
    ),
)
