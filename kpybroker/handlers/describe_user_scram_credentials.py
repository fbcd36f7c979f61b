"""DescribeUserScramCredentials (50): list the SCRAM mechanisms of users, without secrets (KIP-554)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsResult,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    """Return one row for each user in the request; if it names none, one row for each user with a credential."""
    credentials = broker.metadata.image.scram_credentials
    asked = [each.name for each in request.users or ()]
    named = dict.fromkeys(asked or credentials, 0)
    for user in asked:
        named[user] += 1
    results = []
    async for user, times in Turns(broker.long_work).through(named.items()):
        result = DescribeUserScramCredentialsResult(user=user)
        if times > 1:
            result.error_code = ErrorCode.DUPLICATE_RESOURCE
            result.error_message = (
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            )
        elif user not in credentials:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = f"Attempt to describe a user credential that does not exist: {user}"
        else:
            result.credential_infos = [
                CredentialInfo(mechanism=mechanism, iterations=each.iterations)
                for mechanism, each in sorted(credentials[user].items())
            ]
        results.append(result)
    return Response(results=results)


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse the whole request. As in Apache Kafka, the response has a row without a user name for each requested
    user."""
    row = DescribeUserScramCredentialsResult(error_code=refusal.code, error_message=refusal.message)
    return Response(error_code=refusal.code, error_message=refusal.message, results=[row for _ in request.users or ()])
