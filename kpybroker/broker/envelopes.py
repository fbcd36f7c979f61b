"""Requests that a broker sends to the active controller on behalf of a client, in an Envelope (KIP-590)."""

from __future__ import annotations

from ipaddress import ip_address

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.security.principal import encode_principal
from kpybroker.wire.api import Api
from kpybroker.wire.frame import parse_response_header, request_head
from kpybroker.wire.rpc import envelope


async def forwarded(
    channel: ControllerChannel, api: Api, version: int, call: Call, body: bytes, timeout_ms: int
) -> bytes:
    """The body of the active controller's response. `call` describes the client's request. Raises REQUEST_TIMED_OUT, or
    the error of the envelope."""
    sent = envelope.Request(
        request_data=request_head(0, api, version, call.client_id) + body,
        request_principal=encode_principal(call.principal),
        client_host_address=_packed(call.host),
    )
    told = await channel.ask("Envelope", sent, timeout_ms)
    if told.error_code or told.response_data is None:
        raise KafkaError(ErrorCode(told.error_code or ErrorCode.UNKNOWN_SERVER_ERROR))
    _, body_at = parse_response_header(told.response_data, api, version)
    return bytes(told.response_data[body_at:])


def _packed(host: str) -> bytes:
    try:
        return ip_address(host).packed
    except ValueError:  # a transport that does not know its peer
        return bytes(4)
