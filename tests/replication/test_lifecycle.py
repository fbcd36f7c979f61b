"""A broker registers with a controller elsewhere, is let in, and leaves; and what it does when it is not welcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kpybroker.config import parse_config
from kpybroker.controller.features import SUPPORTED_FEATURES
from kpybroker.errors import ConfigError, KafkaError
from kpybroker.replication.node import controller_channel
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.replication.node.lifecycle import Lifecycle, Stage
from kpybroker.server.node import Node
from kpybroker.wire.rpc import broker_registration as rpc
from kpybroker.wire.rpc import unregister_broker
from tests.replication.pointing import Pointing, controller_of
from tests.serving import serving

SETTINGS = {
    "node.id": "2",
    "broker.session.timeout.ms": "600",
    "broker.heartbeat.interval.ms": "20",
    "initial.broker.registration.timeout.ms": "5000",
}


class Guest:
    """A broker that is nothing but its lifecycle."""

    def __init__(self, node: Node, pointing: Pointing, incarnation: int = 1, **facts: Any) -> None:
        self.epochs: list[int] = []
        self.failures: list[str] = []
        self.wants_fence = False
        self.channel = ControllerChannel(node.broker.world.network, pointing, "guest")
        wanted: dict[str, Any] = {
            "broker_id": 2,
            "cluster_id": node.broker.cluster_id,
            "incarnation_id": bytes([incarnation]) * 16,
            "listeners": [rpc.Listener(name="PLAINTEXT", host="127.0.0.1", port=1)],
            "features": [
                rpc.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in SUPPORTED_FEATURES.items()
            ],
            "rack": "r",
            "log_dirs": [bytes([2]) * 16],
        }
        self.lifecycle = Lifecycle(
            self.channel,
            parse_config(SETTINGS),
            rpc.Request(**{**wanted, **facts}),
            metadata_offset=lambda: node.broker.image.offset,
            on_epoch=self.epochs.append,
            on_failure=self.failures.append,
            wants_fence=lambda: self.wants_fence,
        )

    def kill(self) -> None:
        self.lifecycle.stop()
        self.channel.close()


def play(root: Path, scene: Callable[[Node, Pointing], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with serving(root / "data", {"broker.session.timeout.ms": "600"}) as node:
            pointing = Pointing()
            pointing.to(await controller_of(node))
            await scene(node, pointing)

    asyncio.run(asyncio.wait_for(whole(), 60))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def test_a_broker_is_fenced_at_its_wish(tmp_path: Path) -> None:
    """At once, though it is heard of; and let in again when it wishes that no more. It keeps its registration."""

    async def scene(node: Node, pointing: Pointing) -> None:
        guest = Guest(node, pointing)
        await guest.lifecycle.join()
        for wish in (True, False, True, False):
            guest.wants_fence = wish
            guest.lifecycle.tell()
            await until(lambda wish=wish: guest.lifecycle.fenced is wish)  # type: ignore[misc]
            assert node.broker.image.brokers[2].fenced is wish
        assert (len(guest.epochs), guest.failures) == (1, [])
        guest.kill()

    play(tmp_path, scene)


def test_join_and_leave(tmp_path: Path) -> None:
    async def scene(node: Node, pointing: Pointing) -> None:
        guest = Guest(node, pointing)
        await guest.lifecycle.join()
        known = node.broker.image.brokers[2]
        assert (guest.epochs, known.fenced, known.rack) == ([known.epoch], False, "r")
        assert guest.lifecycle.stage is Stage.RUNNING
        assert await guest.lifecycle.leave()
        assert node.broker.image.brokers[2].fenced
        guest.kill()

    play(tmp_path, scene)


def test_who_starts_before_the_others_waits_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That nobody can be elected now is said to those who ask, and does not end a start."""
    monkeypatch.setattr(controller_channel, "IN_VAIN_MS", 0)

    async def scene(node: Node, pointing: Pointing) -> None:
        at = pointing.active_controller
        pointing.to(None)
        pointing.lacks_majority = True
        guest = Guest(node, pointing)
        joining = asyncio.ensure_future(guest.lifecycle.join())
        with pytest.raises(KafkaError, match="nobody leads the quorum"):
            await guest.channel.ask("BrokerRegistration", None, 5000)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not joining.done()
        pointing.lacks_majority = False
        pointing.to(at)
        await joining
        assert not node.broker.image.brokers[2].fenced
        guest.kill()

    play(tmp_path, scene)


def test_who_was_unregistered_while_it_runs_registers_again(tmp_path: Path) -> None:
    async def scene(node: Node, pointing: Pointing) -> None:
        guest = Guest(node, pointing)
        await guest.lifecycle.join()
        await node.broker.channel.ask("UnregisterBroker", unregister_broker.Request(broker_id=2), 5000)
        await until(lambda: 2 in node.broker.image.brokers and not node.broker.image.brokers[2].fenced)
        assert len(guest.epochs) == 2
        assert guest.epochs[1] == node.broker.image.brokers[2].epoch > guest.epochs[0]
        guest.kill()

    play(tmp_path, scene)


def test_a_new_incarnation_takes_over_from_one_that_was_killed(tmp_path: Path) -> None:
    async def scene(node: Node, pointing: Pointing) -> None:
        first, second = (Guest(node, pointing, incarnation) for incarnation in (1, 2))
        await first.lifecycle.join()
        first.kill()
        await second.lifecycle.join()
        assert second.epochs[0] > first.epochs[0]
        second.kill()

    play(tmp_path, scene)


def test_two_nodes_with_one_id_do_not_both_stay(tmp_path: Path) -> None:
    async def scene(node: Node, pointing: Pointing) -> None:
        first, second = (Guest(node, pointing, incarnation) for incarnation in (1, 2))
        await first.lifecycle.join()
        second.lifecycle._start_timeout_ms = 300
        with pytest.raises(ConfigError, match=r"DUPLICATE_BROKER_REGISTRATION.*node\.id"):
            await second.lifecycle.join()
        assert not node.broker.image.brokers[2].fenced
        first.kill()
        second.kill()

    play(tmp_path, scene)


def test_a_broker_whose_id_was_taken_gives_up(tmp_path: Path) -> None:
    async def scene(node: Node, pointing: Pointing) -> None:
        first, second = (Guest(node, pointing, incarnation) for incarnation in (1, 2))
        await first.lifecycle.join()
        pointing.to(None)  # the first one is cut off, for longer than its session
        second_pointing = Pointing()
        second_pointing.to(await controller_of(node))
        second = Guest(node, second_pointing, 2)
        for connection in node.server.connections():
            connection.abort()
        await second.lifecycle.join()
        pointing.to(await controller_of(node))
        await until(lambda: bool(first.failures))
        assert "node.id" in first.failures[0]
        assert not node.broker.image.brokers[2].fenced
        assert second.lifecycle.stage is Stage.RUNNING
        second.kill()

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("facts", "cause", "way_out"),
    [
        ({"cluster_id": "x" * 22}, "INCONSISTENT_CLUSTER_ID", "meta.properties"),
        ({"features": []}, "INVALID_REGISTRATION", "log.dirs"),
        ({"listeners": []}, "INVALID_REQUEST", "listeners"),
        (
            {"features": [rpc.Feature(name="metadata.version", min_supported_version=7, max_supported_version=8)]},
            "UNSUPPORTED_VERSION",
            "upgrade this node",
        ),
    ],
)
def test_who_is_not_welcome_is_told_why(tmp_path: Path, facts: dict[str, Any], cause: str, way_out: str) -> None:
    async def scene(node: Node, pointing: Pointing) -> None:
        guest = Guest(node, pointing, **facts)
        with pytest.raises(ConfigError, match=rf"(?s){cause}.*{way_out}"):
            await guest.lifecycle.join()
        guest.kill()

    play(tmp_path, scene)


def test_without_a_controller_the_start_ends(tmp_path: Path) -> None:
    async def scene(node: Node, pointing: Pointing) -> None:
        pointing.to(None)
        guest = Guest(node, pointing)
        guest.lifecycle._start_timeout_ms = 50
        with pytest.raises(ConfigError, match=r"no controller.*controller\.quorum\.voters"):
            await guest.lifecycle.join()
        guest.kill()

    play(tmp_path, scene)
