"""A broker registers with a controller on another node, is unfenced and leaves. Also tests its reaction to a
refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kpybroker.client.dialer import Dialer
from kpybroker.config import parse_config
from kpybroker.controller.features import SUPPORTED_FEATURES
from kpybroker.errors import ConfigError, KafkaError
from kpybroker.replication.node import controller_channel
from kpybroker.replication.node.controller_channel import ControllerChannel
from kpybroker.replication.node.lifecycle import Lifecycle, Stage
from kpybroker.sim.cluster.setup import CONTROLLER_PORT
from kpybroker.wire.rpc import broker_registration as rpc
from kpybroker.wire.rpc import unregister_broker
from tests.replication import virtual
from tests.replication.controller_pointer import At, ControllerPointer
from tests.replication.virtual import VirtualCluster

SETTINGS = {
    "node.id": "2",
    "broker.session.timeout.ms": "600",
    "broker.heartbeat.interval.ms": "20",
}


AT = At(1, "10.0.0.1", CONTROLLER_PORT)
"""The only node of the cluster, and its controller."""


class Guest:
    """A broker that has only a Lifecycle. `timeout_ms` is initial.broker.registration.timeout.ms."""

    def __init__(
        self,
        cluster: VirtualCluster,
        pointer: ControllerPointer,
        incarnation: int = 1,
        timeout_ms: int = 5000,
        **facts: Any,
    ) -> None:
        broker = cluster.broker(1)
        self.epochs: list[int] = []
        self.failures: list[str] = []
        self.wants_fence = False
        self.channel = ControllerChannel(Dialer(cluster.client.network), pointer, "guest")
        wanted: dict[str, Any] = {
            "broker_id": 2,
            "cluster_id": broker.storage.cluster_id,
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
            parse_config({**SETTINGS, "initial.broker.registration.timeout.ms": str(timeout_ms)}),
            rpc.Request(**{**wanted, **facts}),
            metadata_offset=lambda: broker.metadata.image.offset,
            on_epoch=self.epochs.append,
            on_failure=self.failures.append,
            wants_fence=lambda: self.wants_fence,
        )

    def kill(self) -> None:
        self.lifecycle.stop()
        self.channel.close()


def play(scene: Callable[[VirtualCluster, ControllerPointer], Awaitable[None]]) -> None:
    """Run a test with a guest and a cluster of one node, in virtual time."""

    async def with_pointer(cluster: VirtualCluster) -> None:
        pointer = ControllerPointer()
        pointer.to(AT)
        await scene(cluster, pointer)

    virtual.play(with_pointer, 1, broker_session_timeout_ms="600")


def is_live(cluster: VirtualCluster) -> bool:
    """Whether the guest is unfenced in the node's metadata."""
    known = cluster.broker(1).metadata.image.brokers.get(2)
    return known is not None and not known.fenced


def test_a_broker_is_fenced_at_its_request() -> None:
    """It is fenced at once, although its heartbeats continue, and unfenced when it no longer requests to be fenced. Its
    registration does not change."""

    async def scene(cluster: VirtualCluster, pointer: ControllerPointer) -> None:
        guest = Guest(cluster, pointer)
        await guest.lifecycle.join()
        for wish in (True, False, True, False):
            guest.wants_fence = wish
            guest.lifecycle.tell()
            await cluster.until(lambda wish=wish: guest.lifecycle.fenced is wish, "its fencing is as requested")  # type: ignore[misc]
            assert cluster.broker(1).metadata.image.brokers[2].fenced is wish
        assert (len(guest.epochs), guest.failures) == (1, [])
        guest.kill()

    play(scene)


def test_join_and_leave() -> None:
    async def scene(cluster: VirtualCluster, pointer: ControllerPointer) -> None:
        guest = Guest(cluster, pointer)
        await guest.lifecycle.join()
        known = cluster.broker(1).metadata.image.brokers[2]
        assert (guest.epochs, known.fenced, known.rack) == ([known.epoch], False, "r")
        assert guest.lifecycle.stage is Stage.RUNNING
        assert await guest.lifecycle.leave()
        assert cluster.broker(1).metadata.image.brokers[2].fenced
        guest.kill()

    play(scene)


def test_a_broker_that_starts_first_waits_for_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other requests fail while no controller can be elected, but the start of the broker continues."""
    monkeypatch.setattr(controller_channel, "IN_VAIN_MS", 0)

    async def scene(cluster: VirtualCluster, pointer: ControllerPointer) -> None:
        at = pointer.active_controller
        pointer.to(None)
        pointer.lacks_majority = True
        guest = Guest(cluster, pointer)
        joining = asyncio.ensure_future(guest.lifecycle.join())
        with pytest.raises(KafkaError, match="the quorum has no leader"):
            await guest.channel.ask("BrokerRegistration", None, 5000)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not joining.done()
        pointer.lacks_majority = False
        pointer.to(at)
        await joining
        assert not cluster.broker(1).metadata.image.brokers[2].fenced
        guest.kill()

    play(scene)


def test_a_running_broker_that_was_unregistered_registers_again() -> None:
    async def scene(cluster: VirtualCluster, pointer: ControllerPointer) -> None:
        guest = Guest(cluster, pointer)
        await guest.lifecycle.join()
        await cluster.broker(1).membership.channel.ask("UnregisterBroker", unregister_broker.Request(broker_id=2), 5000)
        await cluster.until(lambda: len(guest.epochs) == 2 and is_live(cluster), "it has registered again")
        assert guest.epochs[1] == cluster.broker(1).metadata.image.brokers[2].epoch > guest.epochs[0]
        guest.kill()

    play(scene)


def test_a_new_incarnation_replaces_a_killed_one() -> None:
    async def scene(cluster: VirtualCluster, pointer: ControllerPointer) -> None:
        first, second = (Guest(cluster, pointer, incarnation) for incarnation in (1, 2))
        await first.lifecycle.join()
        first.kill()
        await second.lifecycle.join()
        assert second.epochs[0] > first.epochs[0]
        second.kill()

    play(scene)


def test_two_nodes_with_one_id_cannot_both_register() -> None:
    async def scene(cluster: VirtualCluster, pointer: ControllerPointer) -> None:
        first, second = Guest(cluster, pointer, 1), Guest(cluster, pointer, 2, timeout_ms=300)
        await first.lifecycle.join()
        with pytest.raises(ConfigError, match=r"DUPLICATE_BROKER_REGISTRATION.*node\.id"):
            await second.lifecycle.join()
        assert not cluster.broker(1).metadata.image.brokers[2].fenced
        first.kill()
        second.kill()

    play(scene)


def test_a_broker_whose_id_was_taken_stops() -> None:
    async def scene(cluster: VirtualCluster, pointer: ControllerPointer) -> None:
        first = Guest(cluster, pointer, 1)
        await first.lifecycle.join()
        pointer.to(None)  # the first broker is disconnected for longer than its session timeout
        second_pointer = ControllerPointer()
        second_pointer.to(AT)
        second = Guest(cluster, second_pointer, 2)
        node = cluster.machines[1].node
        assert node is not None
        for connection in node.server.connections():
            connection.abort()
        await second.lifecycle.join()
        pointer.to(AT)
        await cluster.until(lambda: bool(first.failures), "the first one gives up")
        assert "node.id" in first.failures[0]
        assert not cluster.broker(1).metadata.image.brokers[2].fenced
        assert second.lifecycle.stage is Stage.RUNNING
        second.kill()

    play(scene)


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
def test_a_refused_broker_names_the_cause_and_the_remedy(facts: dict[str, Any], cause: str, way_out: str) -> None:
    async def scene(cluster: VirtualCluster, pointer: ControllerPointer) -> None:
        guest = Guest(cluster, pointer, **facts)
        with pytest.raises(ConfigError, match=rf"(?s){cause}.*{way_out}"):
            await guest.lifecycle.join()
        guest.kill()

    play(scene)


def test_a_start_without_a_controller_fails() -> None:
    async def scene(cluster: VirtualCluster, pointer: ControllerPointer) -> None:
        pointer.to(None)
        guest = Guest(cluster, pointer, timeout_ms=50)
        with pytest.raises(ConfigError, match=r"no controller.*controller\.quorum\.voters"):
            await guest.lifecycle.join()
        guest.kill()

    play(scene)
