"""Tests CreateDelegationToken over a socket without a login. Kafka's responses are in tests/golden."""

from __future__ import annotations

from kpybroker.errors import ErrorCode
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import create_delegation_token as rpc
from tests.conftest import WithBroker
from tests.handlers.refusing import told_in_every_version


def test_a_client_without_a_login_is_refused(with_broker: WithBroker) -> None:
    for told in told_in_every_version(with_broker, by_name["CreateDelegationToken"], rpc.Request()):
        assert told.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert (told.principal_type, told.principal_name, told.hmac) == ("User", "ANONYMOUS", b"")
