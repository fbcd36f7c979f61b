"""Envelope (58): handle a client's request that another node forwarded to the active controller (KIP-590).

An Envelope request contains the client's request, and an Envelope response contains the response to the client, each as
a frame without its size. The error code of the Envelope response is for the forwarding node, and the error codes in the
contained response are for the client.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.handlers import answer
from kpybroker.security.principal import Principal, decode_principal
from kpybroker.wire.api import by_key
from kpybroker.wire.codec.codec import build_in_turns, parse_in_turns
from kpybroker.wire.encoded import Encoded
from kpybroker.wire.frame import parse_request_header, response_head
from kpybroker.wire.rpc.envelope import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Handle the contained request on behalf of its principal.

    Raises NOT_CONTROLLER, PRINCIPAL_DESERIALIZATION_FAILURE, and INVALID_REQUEST if its API is not forwarded.
    """
    if not broker.controller.is_active:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)
    header, body_at = parse_request_header(request.request_data)
    api = by_key.get(header.api_key)
    if api is None or not api.is_forwarded or not api.min <= header.api_version <= api.max:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    principal = _principal(request.request_principal)
    version = header.api_version
    work = broker.long_work
    inside = bytes(request.request_data)
    inner = await work.through(parse_in_turns(api.request, version, inside, body_at, api.elements))
    host = _host(request.client_host_address)
    asker = Call(api.key, version, header.client_id, host, call.connection, forwarded=True, principal=principal)
    told = await answer(broker, api, asker, inner)
    if api.has_error(told, ErrorCode.NOT_CONTROLLER):
        raise KafkaError(
            ErrorCode.NOT_CONTROLLER
        )  # another node has become the active controller in the meantime: the sender tries again there
    assert not isinstance(told, Encoded)
    body = await work.through(build_in_turns(told, version))
    return Response(response_data=response_head(header.correlation_id, api, version) + body)


def _principal(data: bytes | None) -> Principal:
    if data is None:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, "the envelope has no principal")
    try:
        return decode_principal(data)
    except Damage as reason:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(reason)) from None


def _host(address: bytes) -> str:
    if len(address) not in (4, 16):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return str(ip_address(address))
