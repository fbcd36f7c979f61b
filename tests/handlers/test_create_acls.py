"""CreateAcls over a socket: there is no authorizer. Kafka's own answers are in tests/golden."""

from __future__ import annotations

from kpybroker.errors import ErrorCode
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import create_acls as rpc
from tests.conftest import WithBroker
from tests.handlers.refusing import told_in_every_version


def test_every_row_is_refused(with_broker: WithBroker) -> None:
    request = rpc.Request(creations=[rpc.AclCreation(resource_name=name) for name in ("a", "b")])
    for told in told_in_every_version(with_broker, by_name["CreateAcls"], request):
        rows = [(row.error_code, row.error_message) for row in told.results]
        assert rows == [(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")] * 2
