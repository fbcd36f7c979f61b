"""Authorizers for tests, which do not use ACLs."""

from __future__ import annotations

from collections.abc import Iterable

from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.security.principal import Principal


class Closed:
    """Allows no operations, or only operations on resources of one type."""

    grants = None

    def __init__(self, but: AclResource | None = None) -> None:
        self._but = but
        self.asked: list[tuple[Operation, AclResource, str]] = []

    def allows(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource, name: str
    ) -> bool:
        self.asked.append((operation, resource, name))
        return resource is self._but

    def allows_any(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource
    ) -> bool:
        self.asked.append((operation, resource, "*"))
        return resource is self._but

    def operations(
        self, principal: Principal, host: str, asked: Iterable[Operation], resource: AclResource, name: str
    ) -> int:
        self.asked += [(operation, resource, name) for operation in asked]
        return 0


class AllBut:
    """Allows all operations except one."""

    grants = None

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def allows(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource, name: str
    ) -> bool:
        return operation is not self._operation

    def allows_any(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource
    ) -> bool:
        return operation is not self._operation

    def operations(
        self, principal: Principal, host: str, asked: Iterable[Operation], resource: AclResource, name: str
    ) -> int:
        return sum(1 << each for each in asked if each is not self._operation)
