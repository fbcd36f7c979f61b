"""ListTransactions (66): list the transactional ids that this broker coordinates (KIP-664).

v1 has a filter by duration (KIP-994), and v2 a regular expression for the transactional id (KIP-1152).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.groups.consumer.subscription_regex import compiled
from kpybroker.transactions.commands import ListAll
from kpybroker.transactions.transaction import TransactionState
from kpybroker.wire.rpc.list_transactions import Request, Response
from kpybroker.wire.rpc.list_transactions import TransactionState as ListedTransaction

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

STATES = {state.word: state for state in TransactionState}


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    """Return the transactions that match all filters. An empty filter matches every transaction.

    State names are case-sensitive. The response lists the unknown ones.
    """
    unknown = [word for word in request.state_filters if word not in STATES]
    states = frozenset(STATES[word] for word in request.state_filters if word in STATES)
    if request.state_filters and not states:
        return Response(unknown_state_filters=unknown)
    command = ListAll(states, frozenset(request.producer_id_filters), request.duration_filter)
    try:
        fits = compiled(request.transactional_id_pattern).fullmatch if request.transactional_id_pattern else None
        found = await broker.coordinators.transactions.list(command, broker.config.request_timeout_ms)
    except KafkaError as refusal:
        return Response(error_code=refusal.code)
    return Response(
        unknown_state_filters=unknown,
        transaction_states=[
            ListedTransaction(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state.word,
            )
            for each in found
            if fits is None or fits(each.transactional_id)
        ],
    )
