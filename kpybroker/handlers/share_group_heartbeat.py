"""ShareGroupHeartbeat (76): join, stay in and leave a share group (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import ShareHeartbeat
from kpybroker.serving.shares.places import check_served
from kpybroker.wire.rpc.share_group_heartbeat import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Respond once the changes caused by the heartbeat have been committed."""
    try:
        check_served(broker)
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
        image = broker.metadata.image
        for name in request.subscribed_topic_names or () if image.views or image.retirements else ():
            if (retirement := image.retired(name)) is not None:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"{name} has the retired partitions of {retirement.topic}, and share groups cannot read those; "
                    "read them with a consumer group.",
                )
            if (view := image.view(name)) is not None:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"{name} is a view of {view.source}, and share groups cannot read views; subscribe to {view.source}"
                    ", or read the view with a consumer group.",
                )
        command = ShareHeartbeat(request, call.client_id or "", f"/{call.host}")
        runner = broker.coordinators.groups.runner(request.group_id)
        response: Response = await runner.ask(command, broker.config.offsets_commit_timeout_ms)
    except KafkaError as refusal:
        return Response(error_code=refusal.code, error_message=refusal.message)
    return response
