"""Decides CreateAcls and DeleteAcls: checks new ACLs, finds the ACLs that a filter selects, and creates the records
(KIP-140, KIP-290)."""

from __future__ import annotations

from random import Random
from typing import Any

from kpybroker.controller.acl_commands import AclResult, CreateAcls, DeleteAcls
from kpybroker.controller.ids import random_uuid
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.acls import record_of
from kpybroker.security.acls import ANY, MATCH, Acl, AclFilter, PatternType, Permission
from kpybroker.security.authorizer import CLUSTER_NAME, AclResource, Operation
from kpybroker.wire.stored import metadata as stored

ACLS_MAX = 100_000
"""The most ACLs that a cluster may have. A metadata log written by Apache Kafka may contain more."""
DELETED_MAX = 10_000
"""The most ACLs that one request may delete, as in Kafka."""
LISTED_MAX = 10 * DELETED_MAX
"""The most ACLs in one response; an ACL that several filters select counts several times."""
COMPARED_MAX = 1_000_000
"""The most comparisons of a filter with an ACL in one request. They take about half a second."""
LENGTH_MAX = 2048
"""The most characters in each string of an ACL."""
RESOURCES = frozenset(AclResource)
OPERATIONS = frozenset(Operation)


def create_acls(state: ControllerState, random: Random, command: CreateAcls) -> tuple[list[Any], list[AclResult]]:
    """Decide on each ACL separately. Adding an ACL that already exists succeeds without a record."""
    made: dict[Acl, stored.AccessControlEntryRecord] = {}
    results = []
    for acl in command.acls:
        try:
            _check(acl)
            if acl not in state.acl_ids and acl not in made:
                if len(state.acls) + len(made) >= ACLS_MAX:
                    raise KafkaError(ErrorCode.POLICY_VIOLATION, f"A cluster may have at most {ACLS_MAX} ACLs.")
                made[acl] = record_of(random_uuid(random), acl)
            results.append(AclResult())
        except KafkaError as refusal:
            results.append(AclResult(refusal.code, refusal.message))
    return list(made.values()), results


def _check(acl: Acl) -> None:
    """Check a new ACL. Raises INVALID_REQUEST, with Kafka's error messages."""
    if acl.resource_type not in RESOURCES:
        raise _invalid(f"Invalid resourceType {_name(acl.resource_type)}")
    if not acl.resource_name:
        raise _invalid("Invalid empty resource name")
    if acl.resource_type == AclResource.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {_name(acl.pattern_type, with_match=True)}")
    if acl.operation not in OPERATIONS:
        raise _invalid(f"Invalid operation {_name(acl.operation)}")
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        raise _invalid(f"Invalid permissionType {_name(acl.permission)}")
    if ":" not in acl.principal:
        raise _invalid(
            f"Could not parse principal from `{acl.principal[:LENGTH_MAX]}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    if max(len(acl.resource_name), len(acl.principal), len(acl.host)) > LENGTH_MAX:
        raise _invalid(f"A resource name, a principal and a host may have at most {LENGTH_MAX} characters each.")


def _name(code: int, *, with_match: bool = False) -> str:
    if code == MATCH and with_match:
        return "MATCH"
    return "ANY" if code == ANY else "UNKNOWN"


def delete_acls(state: ControllerState, command: DeleteAcls) -> tuple[list[Any], list[AclResult]]:
    """Delete all ACLs that the filters select, or none. Raises INVALID_REQUEST if there are too many ACLs for one
    request."""
    asked = sum(each.acl is None for each in command.filters)
    if asked * len(state.acls) > COMPARED_MAX:
        raise _invalid(
            f"Comparing {asked} filters with {len(state.acls)} ACLs takes too long for one request. "
            "Send fewer filters, or name resource, principal, host, operation and permission in each."
        )
    gone: dict[bytes, None] = {}
    results: list[AclResult] = []
    listed = 0
    for each in command.filters:
        unknown = _unknown(each)
        if unknown is not None:
            results.append(AclResult(ErrorCode.INVALID_REQUEST, unknown))
            continue
        found = _selected(state, each)
        listed += len(found)
        gone.update(dict.fromkeys(found))
        if len(gone) > DELETED_MAX or listed > LISTED_MAX:
            raise _invalid(f"Cannot remove more than {DELETED_MAX} acls in a single delete operation.")
        results.append(AclResult(deleted=tuple(state.acls[uuid] for uuid in found)))
    return [stored.RemoveAccessControlEntryRecord(id=uuid) for uuid in gone], results


def _unknown(wanted: AclFilter) -> str | None:
    """Kafka's error message for a filter with unknown codes; None if all codes are known."""
    if wanted.resource_type not in {ANY, *RESOURCES} or wanted.pattern_type not in {ANY, MATCH, *PatternType}:
        return "Unknown patternFilter."
    if wanted.operation not in {ANY, *OPERATIONS} or wanted.permission not in {ANY, *Permission}:
        return "Unknown entryFilter."
    return None


def _selected(state: ControllerState, wanted: AclFilter) -> list[bytes]:
    only = wanted.acl
    if only is not None and len(state.acls) == len(state.acl_ids):
        return [state.acl_ids[only]] if only in state.acl_ids else []
    return [uuid for uuid, acl in state.acls.items() if wanted.matches(acl)]


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, reason)
