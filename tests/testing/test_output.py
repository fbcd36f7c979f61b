"""Tests of the output that a broker has written since a given moment: it is bounded, and reading it does not disturb
the broker."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kpybroker.testing.output import SHOWN_BYTES, BrokerOutput


def test_only_the_end_of_the_new_output_is_returned(tmp_path: Path) -> None:
    with tempfile.TemporaryFile() as stderr:
        output = BrokerOutput(stderr)
        assert (output.sizes(), output.since({})) == ({"stderr": 0}, "")
        os.write(stderr.fileno(), b"one\n")
        before = output.sizes()
        os.write(stderr.fileno(), b"two\n")
        assert output.since(before) == "two"
        assert output.since({}) == "one\ntwo"
        os.write(stderr.fileno(), b"x" * (SHOWN_BYTES + 1))
        assert output.since({}) == "x" * SHOWN_BYTES
        assert os.fstat(stderr.fileno()).st_size == len(b"one\ntwo\n") + SHOWN_BYTES + 1, "nothing was overwritten"


def test_the_log_of_each_node_is_named(tmp_path: Path) -> None:
    with tempfile.TemporaryFile() as stderr:
        output = BrokerOutput(stderr)
        output.read_logs_in(tmp_path)
        (tmp_path / "node-1.log").write_text("first\n")
        (tmp_path / "node-2.log").write_text("second\n")
        before = output.sizes()
        with (tmp_path / "node-2.log").open("a") as log:
            log.write("third\n")
        assert output.since(before) == "node-2.log:\nthird"
        (tmp_path / "node-2.log").unlink()
        assert output.since({}) == "node-1.log:\nfirst"
