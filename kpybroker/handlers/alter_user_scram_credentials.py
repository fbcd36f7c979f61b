"""AlterUserScramCredentials (51): set and remove SCRAM credentials (KIP-554).

Each user succeeds or fails independently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.scram_commands import AlterUserScramCredentials, ScramDeletion, ScramUpsertion
from kpybroker.errors import KafkaError
from kpybroker.wire.rpc.alter_user_scram_credentials import AlterUserScramCredentialsResult, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    command = AlterUserScramCredentials(
        tuple(ScramDeletion(each.name, each.mechanism) for each in request.deletions),
        tuple(
            ScramUpsertion(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
            for each in request.upsertions
        ),
    )
    results = await broker.controller.ask(command, broker.config.request_timeout_ms)
    return Response(
        results=[
            AlterUserScramCredentialsResult(
                user=result.user, error_code=result.error_code, error_message=result.error_message
            )
            for result in results
        ]
    )


def refuse(request: Request, refusal: KafkaError) -> Response:
    users = dict.fromkeys([each.name for each in request.deletions] + [each.name for each in request.upsertions])
    return Response(
        results=[
            AlterUserScramCredentialsResult(user=user, error_code=refusal.code, error_message=refusal.message)
            for user in users
        ]
    )
