"""Tests that the output of the brokers since a given time is limited, and is read without disturbing them."""

from __future__ import annotations

from pathlib import Path

from kpybroker.testing.output import SHOWN_BYTES, BrokerOutput


def test_only_the_end_of_the_new_output_is_returned(tmp_path: Path) -> None:
    output = BrokerOutput(tmp_path)
    assert (output.sizes(), output.since({})) == ({}, "")
    with (tmp_path / "node-1.log").open("ab", buffering=0) as log:
        log.write(b"one\n")
        before = output.sizes()
        log.write(b"two\n")
        assert output.since(before) == "two"
        assert output.since({}) == "one\ntwo"
        log.write(b"x" * (SHOWN_BYTES + 1))
    assert output.since({}) == "x" * SHOWN_BYTES
    assert output.since({}, at_most=3) == "xxx"


def test_the_log_of_each_node_is_named(tmp_path: Path) -> None:
    output = BrokerOutput(tmp_path)
    (tmp_path / "node-1.log").write_text("first\n")
    (tmp_path / "node-2.log").write_text("second\n")
    before = output.sizes()
    with (tmp_path / "node-2.log").open("a") as log:
        log.write("third\n")
    assert output.since(before) == "node-2.log:\nthird"
    (tmp_path / "node-2.log").unlink()
    assert output.since({}) == "first"
