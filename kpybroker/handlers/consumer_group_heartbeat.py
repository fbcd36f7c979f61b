"""ConsumerGroupHeartbeat (68): join, stay in and leave a consumer group (KIP-848).

In v1, members can subscribe by regular expression, and generate their own member ids (KIP-1082).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import ConsumerHeartbeat
from kpybroker.metadata.image import GROUP_FEATURE
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.serving.authorization import is_shown
from kpybroker.wire.rpc.consumer_group_heartbeat import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

OWN_IDS_SINCE = 1
PROTOCOL = "consumer"


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Respond once the changes caused by the heartbeat have been committed."""
    try:
        check_served(broker)
        if not request.member_id and request.member_epoch == 0 and call.version < OWN_IDS_SINCE:
            request.member_id = broker.coordinators.groups.new_member_id()
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
        may_describe = None
        if broker.metadata.authorizer is not None:
            may_describe = partial(is_shown, broker, call, Operation.DESCRIBE, AclResource.TOPIC)
        command = ConsumerHeartbeat(request, call.client_id or "", f"/{call.host}", may_describe)
        runner = broker.coordinators.groups.runner(request.group_id)
        response: Response = await runner.ask(command, broker.config.offsets_commit_timeout_ms)
    except KafkaError as refusal:
        return Response(error_code=refusal.code, error_message=refusal.message)
    return response


def check_served(broker: Broker) -> None:
    """Raise UNSUPPORTED_VERSION if the cluster or this broker does not serve the consumer protocol."""
    if not broker.metadata.image.features.get(GROUP_FEATURE, 0):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"The feature {GROUP_FEATURE} is 0 in this cluster.")
    if PROTOCOL not in broker.config.group_coordinator_rebalance_protocols:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
