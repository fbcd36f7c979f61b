"""Tests that a broker with StandardAuthorizer logs a line for each refusal, and does not start with any other class."""

from __future__ import annotations

import json
from pathlib import Path

from kpybroker.config.security_keys import STANDARD_AUTHORIZER
from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc import describe_acls
from oracle.asking import ask
from tests.cli.shell import kpybroker_process, ready
from tests.handlers.acl_setting import description

CLASS = "authorizer.class.name"


def refused(tmp_path: Path, *settings: str) -> list[str]:
    """The lines that a broker writes to stderr when it refuses one request."""
    process = kpybroker_process(
        *("dev", "--port", "0", "--data-dir", str(tmp_path / "data")),
        *("--set", f"{CLASS}={STANDARD_AUTHORIZER}", "--set", "super.users=User:root", *settings),
    )
    try:
        host, _, port = ready(process)["bootstrap"].rpartition(":")
        told = ask((host, int(port)), "DescribeAcls", 3, description(), describe_acls.Response, 30)
        assert told.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    finally:
        process.terminate()
        _, said = process.communicate()
    return [str(line) for line in said.splitlines()]


def test_a_refusal_is_logged_unless_a_level_says_otherwise(tmp_path: Path) -> None:
    (line,) = (line for line in refused(tmp_path) if "Principal = " in line)
    assert " INFO kpybroker.authorizer: Principal = User:ANONYMOUS is Denied operation = DESCRIBE from host = " in line
    assert line.endswith(
        "resource = Cluster:LITERAL:kafka-cluster for request = DescribeAcls based on rule DefaultDeny"
    )


def test_a_refusal_is_one_line_of_json_on_request(tmp_path: Path) -> None:
    (line,) = (line for line in refused(tmp_path, "--set", "kpybroker.audit.format=json") if "User:ANONYMOUS" in line)
    told = json.loads(line)
    assert (told["decision"], told["request"], told["resourceType"]) == ("Denied", "DescribeAcls", "Cluster")


def test_any_other_authorizer_class_does_not_start(tmp_path: Path) -> None:
    process = kpybroker_process("dev", "--data-dir", str(tmp_path), "--set", f"{CLASS}=com.example.Own")
    _, said = process.communicate()
    assert process.returncode == 2
    assert f"{CLASS}=com.example.Own cannot be applied" in said
    assert STANDARD_AUTHORIZER in said
