"""Requests that change users, ACLs and delegation tokens, and requests that describe them on one broker."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import pbkdf2_hmac
from typing import Any

from kpybroker.errors import ErrorCode
from kpybroker.security.acls import ANY, Acl
from kpybroker.security.sasl.scram import MECHANISMS
from kpybroker.security.scram import DIGESTS, ITERATIONS_MIN
from kpybroker.sim.clients.client import Refused, SimClient
from kpybroker.sim.clients.logins import Created
from kpybroker.sim.clients.topic_admin import ADMIN_LIMIT_S
from kpybroker.wire.rpc import (
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    describe_acls,
    describe_delegation_token,
    describe_user_scram_credentials,
    expire_delegation_token,
)

NOT_FOUND = int(ErrorCode.RESOURCE_NOT_FOUND)


async def set_scram(
    client: SimClient, user: str, mechanism: str, password: str, iterations: int = ITERATIONS_MIN
) -> None:
    """Set a user's credential. Raises Unanswered, Refused."""
    code, salt = MECHANISMS[mechanism], client.random.randbytes(16)
    row = alter_user_scram_credentials.ScramCredentialUpsertion(
        name=user,
        mechanism=code,
        iterations=iterations,
        salt=salt,
        salted_password=pbkdf2_hmac(DIGESTS[code], password.encode(), salt, iterations),
    )
    await _alter_scram(client, alter_user_scram_credentials.Request(upsertions=[row]))


async def remove_scram(client: SimClient, user: str, mechanism: str) -> None:
    """Remove a user's credential. Raises Unanswered, Refused."""
    row = alter_user_scram_credentials.ScramCredentialDeletion(name=user, mechanism=MECHANISMS[mechanism])
    await _alter_scram(client, alter_user_scram_credentials.Request(deletions=[row]))


async def _alter_scram(client: SimClient, request: Any) -> None:
    told = await client.ask(client.any_broker(), "AlterUserScramCredentials", request, limit_s=ADMIN_LIMIT_S)
    _check(told.results[0].error_code)


async def scram_of(client: SimClient, node_id: int, user: str) -> dict[int, int]:
    """The iterations of a user's credentials, by mechanism, on a node. Raises Unanswered, Refused."""
    request = describe_user_scram_credentials.Request(users=[describe_user_scram_credentials.UserName(name=user)])
    told = await client.ask(node_id, "DescribeUserScramCredentials", request)
    _check(told.error_code)
    row = told.results[0]
    if row.error_code == NOT_FOUND:
        return {}
    _check(row.error_code)
    return {each.mechanism: each.iterations for each in row.credential_infos}


async def add_acls(client: SimClient, acls: Sequence[Acl]) -> None:
    """Create ACLs. Raises Unanswered, Refused."""
    rows = [
        create_acls.AclCreation(
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            resource_pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]
    told = await client.ask(
        client.any_broker(), "CreateAcls", create_acls.Request(creations=rows), limit_s=ADMIN_LIMIT_S
    )
    for row in told.results:
        _check(row.error_code)


async def remove_acl(client: SimClient, acl: Acl) -> None:
    """Delete an ACL. Raises Unanswered, Refused."""
    row = delete_acls.DeleteAclsFilter(
        resource_type_filter=acl.resource_type,
        resource_name_filter=acl.resource_name,
        pattern_type_filter=acl.pattern_type,
        principal_filter=acl.principal,
        host_filter=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
    told = await client.ask(
        client.any_broker(), "DeleteAcls", delete_acls.Request(filters=[row]), limit_s=ADMIN_LIMIT_S
    )
    _check(told.filter_results[0].error_code)


async def acls_of(client: SimClient, node_id: int, principal: str) -> set[Acl]:
    """The ACLs of a principal on a node. Raises Unanswered, Refused."""
    request = describe_acls.Request(
        resource_type_filter=ANY,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=principal,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    told = await client.ask(node_id, "DescribeAcls", request)
    _check(told.error_code)
    return {
        Acl(
            row.resource_type, row.resource_name, row.pattern_type, each.principal, each.host, each.operation,
            each.permission_type,
        )
        for row in told.resources
        for each in row.acls
    }  # fmt: skip


async def remove_token(client: SimClient, token: Created) -> None:
    """Expire a delegation token at once. Raises Unanswered, Refused."""
    request = expire_delegation_token.Request(hmac=token.hmac, expiry_time_period_ms=-1)
    _check((await client.ask(client.any_broker(), "ExpireDelegationToken", request, limit_s=ADMIN_LIMIT_S)).error_code)


async def tokens_of(client: SimClient, node_id: int, owner: str) -> set[str]:
    """The ids of the delegation tokens of a user on a node. Raises Unanswered, Refused."""
    asked = describe_delegation_token.DescribeDelegationTokenOwner(principal_type="User", principal_name=owner)
    told = await client.ask(node_id, "DescribeDelegationToken", describe_delegation_token.Request(owners=[asked]))
    _check(told.error_code)
    return {row.token_id for row in told.tokens}


def _check(code: int) -> None:
    if code:
        raise Refused(code)
