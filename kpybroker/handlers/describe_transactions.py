"""DescribeTransactions (65): describe the state of transactional ids that this broker coordinates (KIP-664)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.describe_transactions import Request, Response, TopicData, TransactionState

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    """Return the state of each transactional id, or an error."""
    turns = Turns(broker.long_work)
    states = []
    async for each in turns.over(request.transactional_ids, str):
        states.append(await _describe(broker, each))
        turns.add(sum(len(topic.partitions) for topic in states[-1].topics))
    return Response(transaction_states=states)


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every transactional id."""
    return Response(transaction_states=[_refused(each, refusal) for each in request.transactional_ids])


def _refused(transactional_id: str, refusal: KafkaError) -> TransactionState:
    return TransactionState(error_code=refusal.code, transactional_id=transactional_id)


async def _describe(broker: Broker, transactional_id: str) -> TransactionState:
    try:
        found = await broker.coordinators.transactions.describe(transactional_id, broker.config.request_timeout_ms)
    except KafkaError as refusal:
        return _refused(transactional_id, refusal)
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(found.partitions):
        topics[topic].append(index)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state.word,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[TopicData(topic=name, partitions=indexes) for name, indexes in topics.items()],
    )
