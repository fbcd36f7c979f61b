"""Checks the enum codes in requests about ACLs. The code 0 (unknown) closes the connection, as in Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterable

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.security.acls import Acl, AclFilter

UNKNOWN = 0


def check_codes(call: Call, asked: Iterable[Acl] | Iterable[AclFilter]) -> None:
    """Raise MalformedFrame if the resource type, pattern type, operation or permission of an entry is unknown (0).

    If another broker has forwarded the request, raise INVALID_REQUEST instead, because the connection belongs to that
    broker.
    """
    for each in asked:
        if UNKNOWN in (each.resource_type, each.pattern_type, each.operation, each.permission):
            reason = f"an ACL, or a filter of ACLs, with an unknown element: {str(each)[:200]}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, reason) if call.forwarded else MalformedFrame(reason)
