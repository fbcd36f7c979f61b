"""DescribeAcls (29): refused, because there is no authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.rpc.describe_acls import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def handle(_broker: Broker, _call: Call, _request: Request) -> Response:
    raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
