"""Changes ACLs and SCRAM credentials with single requests, sent by a user who may do so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.security.scram import ITERATIONS_MIN, ScramMechanism
from kpybroker.wire.rpc import alter_user_scram_credentials as alter_users
from kpybroker.wire.rpc import create_acls, delete_acls
from oracle.asking import Conversation

SALT = b"a salt for everybody"
ALLOW, DENY = 3, 2
LITERAL, PREFIXED = 3, 4
NONE = 0
NOT_THERE = 91
"""RESOURCE_NOT_FOUND."""


class Refused(Exception):
    """The response to a change contains an error; the change may be tried again."""


class Acl(NamedTuple):
    """An ACL for any host."""

    principal: str
    operation: Operation
    kind: AclResource
    name: str
    pattern: int = LITERAL
    permission: int = ALLOW

    def creation(self) -> create_acls.AclCreation:
        return create_acls.AclCreation(
            resource_type=self.kind,
            resource_name=self.name,
            resource_pattern_type=self.pattern,
            principal=f"User:{self.principal}",
            host="*",
            operation=self.operation,
            permission_type=self.permission,
        )

    def filter(self) -> delete_acls.DeleteAclsFilter:
        return delete_acls.DeleteAclsFilter(
            resource_type_filter=self.kind,
            resource_name_filter=self.name,
            pattern_type_filter=self.pattern,
            principal_filter=f"User:{self.principal}",
            host_filter="*",
            operation=self.operation,
            permission_type=self.permission,
        )


def create(node: Conversation, acls: Iterable[Acl]) -> None:
    """Raises OSError, Refused."""
    request = create_acls.Request(creations=[acl.creation() for acl in acls])
    _check(row.error_code for row in node.ask("CreateAcls", 3, request, create_acls.Response).results)


def delete(node: Conversation, acls: Iterable[Acl]) -> None:
    """Raises OSError, Refused."""
    request = delete_acls.Request(filters=[acl.filter() for acl in acls])
    _check(row.error_code for row in node.ask("DeleteAcls", 3, request, delete_acls.Response).filter_results)


def set_password(node: Conversation, user: str, password: str, iterations: int = ITERATIONS_MIN) -> None:
    """Set a user's password for SCRAM-SHA-256. Raises OSError, Refused."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), SALT, iterations)
    row = alter_users.ScramCredentialUpsertion(
        name=user,
        mechanism=ScramMechanism.SCRAM_SHA_256,
        iterations=iterations,
        salt=SALT,
        salted_password=salted,
    )
    _alter(node, alter_users.Request(upsertions=[row]))


def remove_password(node: Conversation, user: str) -> None:
    """Raises OSError, Refused."""
    row = alter_users.ScramCredentialDeletion(name=user, mechanism=ScramMechanism.SCRAM_SHA_256)
    _alter(node, alter_users.Request(deletions=[row]), {NONE, NOT_THERE})


def _alter(node: Conversation, request: alter_users.Request, accepted: Iterable[int] = (NONE,)) -> None:
    response = node.ask("AlterUserScramCredentials", 0, request, alter_users.Response)
    _check((row.error_code for row in response.results), accepted)


def _check(codes: Iterable[int], accepted: Iterable[int] = (NONE,)) -> None:
    wrong = sorted(set(codes) - set(accepted))
    if wrong:
        raise Refused(f"errors {wrong}")
