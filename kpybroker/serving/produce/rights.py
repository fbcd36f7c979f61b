"""Who may append to a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.scheduled.delivery_logs import CLIENT_ID as DELIVERY_CLIENT
from kpybroker.security.authorizer import Operation
from kpybroker.serving.authorization import allows_topic, may_act_as_a_node

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def may_write(broker: Broker, call: Call, topic: str) -> bool:
    """Whether the caller may append to a topic. Brokers need no ACL to deliver scheduled records."""
    return delivers(broker, call) or allows_topic(broker, call, Operation.WRITE, topic)


def delivers(broker: Broker, call: Call) -> bool:
    """Whether a broker sent this request for scheduled delivery."""
    return call.client_id == DELIVERY_CLIENT and may_act_as_a_node(broker, call)
