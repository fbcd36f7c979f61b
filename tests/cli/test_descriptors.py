"""Tests that the file descriptors of a process are divided up, so that no descriptor is counted twice."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from kpybroker.cli.descriptors import (
    OPEN_MAX,
    SELECT_MAX,
    connections_of_select,
    reserved_descriptors,
    set_descriptor_limits,
    shares,
)
from kpybroker.config import BrokerConfig, parse_config
from kpybroker.errors import ConfigError

CODE = (
    "import resource, sys\n"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))\n"
    "from kpybroker.cli.descriptors import set_descriptor_limits\n"
    "from kpybroker.config import parse_config\n"
    "config = set_descriptor_limits(parse_config(dict(each.split('=') for each in sys.argv[3:])))\n"
    "print(config.max_connections, config.max_open_files, *resource.getrlimit(resource.RLIMIT_NOFILE))\n"
)


def told(soft: int, hard: int, *settings: str) -> tuple[list[int], str]:
    """Run the function in a child. Returns max.connections, kpybroker.max.open.files, the limits of the process, and
    the warnings."""
    command = [sys.executable, "-c", CODE, str(soft), str(hard), *settings]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(each) for each in ended.stdout.split()], ended.stderr


def config_of(*settings: str) -> BrokerConfig:
    return parse_config(dict(each.split("=") for each in settings))


def test_connections_get_the_descriptors_that_segments_leave() -> None:
    assert told(256, 4096) == ([4096 - 512 - 128, 512, 4096, 4096], "")
    assert shares(4096, config_of("kpybroker.max.open.files=64")) == (64, 4096 - 64 - 128)


def test_a_low_connection_limit_is_one_warning() -> None:
    (connections, *_), said = told(256, 1024)
    assert connections == 384
    assert said.splitlines() == ["1024 file descriptors leave room for 384 connections; raise `ulimit -n` for more"]


def test_configured_limits_are_kept() -> None:
    assert shares(1024, config_of("max.connections=7")) == (512, 7)
    assert shares(1024, config_of("max.connections=800")) == (96, 800), "segments do with what is left"
    assert shares(1024, config_of("max.connections=2147483647")) == shares(1024, config_of()), "no limit is no number"


@pytest.mark.parametrize("descriptors", [200, 256, 640, 1024, 20_000, 1 << 20])
@pytest.mark.parametrize("settings", [(), ("log.dirs=/a,/b,/c", "kpybroker.http.port=0")])
def test_the_shares_are_never_more_than_the_total(descriptors: int, settings: tuple[str, ...]) -> None:
    config = config_of(*settings)
    if descriptors <= 256 and settings:
        with pytest.raises(ConfigError):
            shares(descriptors, config)
        return
    files, connections = shares(descriptors, config)
    assert files + connections + reserved_descriptors(config) == descriptors
    assert files >= 16
    assert connections >= descriptors // 4


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        (("max.connections=881",), 128 + 16 + 881),
        (("max.connections=385", "kpybroker.max.open.files=512"), 128 + 512 + 385),
        (("kpybroker.max.open.files=897",), 128 + 897),
    ],
)
def test_impossible_settings_are_refused_with_the_numbers(settings: tuple[str, ...], needed: int) -> None:
    with pytest.raises(ConfigError) as refused:
        shares(needed - 1, config_of(*settings))
    for number in (str(needed - 1), *(each.partition("=")[2] for each in settings)):
        assert number in str(refused.value)
    files, connections = shares(needed, config_of(*settings))
    assert files + connections == needed - 128


def test_an_unreachable_hard_limit_falls_back_to_the_maximum_of_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS the hard limit is unlimited, the soft one is 256, and the system allows at most OPEN_MAX."""

    def as_on_a_mac(which: int, limits: tuple[int, int]) -> None:
        if limits[0] == resource.RLIM_INFINITY or limits[0] > OPEN_MAX:
            raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", as_on_a_mac)
    found = set_descriptor_limits(config_of())
    assert (found.max_connections, found.max_open_files) == (OPEN_MAX - 512 - 128, 512)


def test_windows_has_as_many_connections_as_select_can_wait_for() -> None:
    settings = ("kpybroker.http.port=0",)
    most = connections_of_select(config_of(*settings))
    assert most + reserved_descriptors(config_of(*settings)) == SELECT_MAX
    assert connections_of_select(config_of(*settings, f"max.connections={most}")) == most
    assert connections_of_select(config_of(*settings, "max.connections=7")) == 7
    with pytest.raises(ConfigError, match=f"at most {most} connections"):
        connections_of_select(config_of(*settings, f"max.connections={most + 1}"))
