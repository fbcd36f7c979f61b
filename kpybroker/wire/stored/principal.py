"""The principal in an Envelope (DefaultPrincipalData), which is preceded by its version as an int16 (KIP-590)."""

from kpybroker.wire.codec.message import message


@message("0", flexible=0)
class PrincipalValue:
    type: str = ""
    name: str = ""
    token_authenticated: bool = False
