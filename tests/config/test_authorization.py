"""Tests of the settings of the authorizer: only Kafka's StandardAuthorizer is accepted."""

from __future__ import annotations

import pytest

from kpybroker.config import parse_config
from kpybroker.config.security_keys import STANDARD_AUTHORIZER
from kpybroker.errors import ConfigError

CLASS = "authorizer.class.name"


def test_without_a_class_there_is_no_authorizer() -> None:
    config = parse_config({"super.users": "User:a", CLASS: ""})
    assert (config.authorizer_class_name, config.allow_everyone_if_no_acl_found) == ("", False)


def test_kafkas_class_is_accepted() -> None:
    config = parse_config(
        {
            CLASS: STANDARD_AUTHORIZER,
            "super.users": " User:a;User:CN=b, O=c ; ;",
            "allow.everyone.if.no.acl.found": "true",
        }
    )
    assert config.authorizer_class_name == STANDARD_AUTHORIZER
    assert config.super_users == {"User:a", "User:CN=b, O=c"}
    assert config.allow_everyone_if_no_acl_found


@pytest.mark.parametrize("name", ["kafka.security.authorizer.AclAuthorizer", "x.Y", STANDARD_AUTHORIZER.lower()])
def test_any_other_class_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{CLASS}={name} cannot be applied.*; use {STANDARD_AUTHORIZER}"):
        parse_config({CLASS: name})


@pytest.mark.parametrize("name", ["alice", "User:", ":alice", "User:a;bob"])
def test_a_super_user_is_a_principal(name: str) -> None:
    with pytest.raises(ConfigError, match=r"super.users: .* is not a principal; write type:name"):
        parse_config({CLASS: STANDARD_AUTHORIZER, "super.users": name})


def test_super_users_cannot_be_changed_in_the_metadata() -> None:
    config = parse_config({CLASS: STANDARD_AUTHORIZER, "super.users": "User:a"})
    assert config.with_dynamic({"super.users": "User:b"}, {"allow.everyone.if.no.acl.found": "true"}) is config
