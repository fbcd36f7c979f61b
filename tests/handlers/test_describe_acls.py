"""DescribeAcls over a socket: there is no authorizer. Kafka's own answers are in tests/golden."""

from __future__ import annotations

from kpybroker.errors import ErrorCode
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import describe_acls as rpc
from tests.conftest import WithBroker
from tests.handlers.refusing import told_in_every_version


def test_there_is_no_authorizer(with_broker: WithBroker) -> None:
    for told in told_in_every_version(with_broker, by_name["DescribeAcls"], rpc.Request()):
        assert (told.error_code, told.resources) == (ErrorCode.SECURITY_DISABLED, [])
        assert told.error_message == "No Authorizer is configured on the broker"
