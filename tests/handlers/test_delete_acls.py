"""DeleteAcls over a socket: there is no authorizer. Kafka's own answers are in tests/golden."""

from __future__ import annotations

from kpybroker.errors import ErrorCode
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import delete_acls as rpc
from tests.conftest import WithBroker
from tests.handlers.refusing import told_in_every_version


def test_every_filter_is_refused(with_broker: WithBroker) -> None:
    request = rpc.Request(filters=[rpc.DeleteAclsFilter(resource_name_filter=name) for name in ("a", None)])
    for told in told_in_every_version(with_broker, by_name["DeleteAcls"], request):
        rows = [(row.error_code, row.error_message, row.matching_acls) for row in told.filter_results]
        assert rows == [(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.", [])] * 2
