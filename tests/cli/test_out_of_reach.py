"""Tests of a cluster with an unreachable node: commands name this node, and show the responses of the other nodes."""

from __future__ import annotations

import socket

import pytest

from kpybroker.cli import options
from kpybroker.client.client import Client, CommandFailed
from kpybroker.testing import Broker
from kpybroker.wire.rpc import list_offsets


def test_the_unreachable_node_is_named(kpybroker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("KPYBROKER_BOOTSTRAP", kpybroker.bootstrap)

    async def ask(client: Client) -> None:
        client.brokers[7] = ("127.0.0.1", port)
        await client.ask("ListOffsets", list_offsets.Request(replica_id=-1, topics=[]), node=7)

    options.forget()
    with pytest.raises(CommandFailed, match=f"^node 7 is unreachable at 127.0.0.1:{port}; is it running"):
        options.run(ask)
