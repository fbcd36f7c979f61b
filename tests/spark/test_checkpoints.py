"""Tests that a checkpoint belongs to its topics, and not to other topics with the same names."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kpybroker.errors import ConfigError
from kpybroker.spark import checkpoint
from kpybroker.spark.checkpoints import MARK
from kpybroker.testing import Broker


@pytest.fixture
def admin(kpybroker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kpybroker.bootstrap})


def make(admin: AdminClient, *names: str) -> None:
    for made in admin.create_topics([NewTopic(name, 1) for name in names]).values():
        made.result(10)


def test_a_checkpoint_stays_with_its_topics(kpybroker: Broker, admin: AdminClient, tmp_path: Path) -> None:
    make(admin, "kept", "replaced", "added")
    folder = tmp_path / "checkpoint"
    for topics in ["kept", "replaced"], ["kept", "replaced"], ["kept", "replaced", "added"], ["kept"]:
        assert checkpoint(folder, kpybroker.bootstrap, *topics) == str(folder)
    admin.delete_topics(["replaced"])["replaced"].result(10)
    make(admin, "replaced")
    before = (folder / MARK).read_bytes()
    with pytest.raises(ConfigError, match=f"{folder} was created for another topic replaced,.*delete this one"):
        checkpoint(folder, kpybroker.bootstrap, "kept", "replaced")
    assert (folder / MARK).read_bytes() == before
    assert checkpoint(folder, kpybroker.bootstrap, "kept", "added") == str(folder)
    make(admin, "other")
    with pytest.raises(ConfigError, match=f"{folder} is for added, kept, replaced, not for other"):
        checkpoint(folder, kpybroker.bootstrap, "other")


def test_a_missing_topic(kpybroker: Broker, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no topic absent"):
        checkpoint(tmp_path / "checkpoint", kpybroker.bootstrap, "absent")
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("written", ["", "{", "[]"])
def test_an_unreadable_mark(kpybroker: Broker, admin: AdminClient, tmp_path: Path, written: str) -> None:
    topic = kpybroker.topic("marked")
    make(admin, topic)
    (tmp_path / MARK).write_text(written)
    with pytest.raises(ConfigError, match=f"{MARK} has no topic ids: delete {tmp_path}"):
        checkpoint(tmp_path, kpybroker.bootstrap, topic)
    assert (tmp_path / MARK).read_text() == written


def test_with_a_running_event_loop(kpybroker: Broker, admin: AdminClient, tmp_path: Path) -> None:
    """The thread of a notebook has a running event loop."""
    make(admin, "noted")

    async def cell() -> str:
        return checkpoint(tmp_path, kpybroker.bootstrap, "noted")

    assert asyncio.run(cell()) == str(tmp_path)
