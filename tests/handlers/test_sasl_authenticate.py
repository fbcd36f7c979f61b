"""Tests SaslAuthenticate (36) over a listener without logins. Logins are in tests/server/test_sasl.py."""

from __future__ import annotations

from kpybroker.errors import ErrorCode
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import sasl_authenticate as rpc
from tests.conftest import WithBroker
from tests.handlers.refusing import told_in_every_version


def test_a_listener_without_logins_refuses_it(with_broker: WithBroker) -> None:
    for told in told_in_every_version(with_broker, by_name["SaslAuthenticate"], rpc.Request()):
        assert told.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert told.error_message == "SaslAuthenticate request received after successful authentication"
