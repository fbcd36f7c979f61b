"""Connections leave the logs their descriptors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kpybroker.cli.descriptors import connections_within

CODE = (
    "import resource, sys\n"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))\n"
    "from kpybroker.cli.descriptors import keep_some_back\n"
    "from kpybroker.config import BrokerConfig\n"
    "config = keep_some_back(BrokerConfig.parse(dict(each.split('=') for each in sys.argv[3:])))\n"
    "print(config.max_connections, *resource.getrlimit(resource.RLIMIT_NOFILE))\n"
)


def told(soft: int, hard: int, *settings: str) -> tuple[list[int], str]:
    """max.connections, the limits of the process, and what was warned of."""
    command = [sys.executable, "-c", CODE, str(soft), str(hard), *settings]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(each) for each in ended.stdout.split()], ended.stderr


def test_the_limit_of_connections_is_what_files_leave() -> None:
    assert told(256, 4096) == ([4096 - 512 - 128, 4096, 4096], "")
    assert told(256, 4096, "kpybroker.max.open.files=64") == ([4096 - 64 - 128, 4096, 4096], "")


def test_few_connections_are_warned_of_in_one_line() -> None:
    (limit, *_), said = told(256, 1024)
    assert limit == 384
    assert said.splitlines() == ["1024 file descriptors leave room for 384 connections; raise `ulimit -n` for more"]


def test_what_was_set_is_kept() -> None:
    assert told(256, 1024, "max.connections=7")[0][0] == 7


@pytest.mark.parametrize("descriptors", [16, 256, 640, 1024, 20_000, 1 << 20])
def test_there_is_room_for_both(descriptors: int) -> None:
    assert 0 < connections_within(descriptors, 512) < descriptors
