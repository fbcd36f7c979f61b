"""SaslHandshake (17): a client selects the SASL mechanism of its login (KIP-43)."""

from kpybroker.wire.codec.message import message
from kpybroker.wire.codec.primitives import Int16


@message("0-1")
class Request:
    mechanism: str = ""


@message("0-1")
class Response:
    error_code: Int16 = 0
    mechanisms: list[str] = []
