"""The controller's commands for ACLs; plain values, like those in `commands.py`."""

from __future__ import annotations

from typing import NamedTuple

from kpybroker.errors import ErrorCode
from kpybroker.security.acls import Acl, AclFilter


class CreateAcls(NamedTuple):
    """ACLs to add. Answer: list[AclResult], one for each ACL."""

    acls: tuple[Acl, ...]


class DeleteAcls(NamedTuple):
    """Delete all ACLs that the filters select, or none of them. Answer: list[AclResult], one for each filter."""

    filters: tuple[AclFilter, ...]


class AclResult(NamedTuple):
    """The result for one ACL or filter. `deleted` has the ACLs that the filter selected."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    deleted: tuple[Acl, ...] = ()
