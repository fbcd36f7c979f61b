"""Tests the pages of several nodes when a node answers too late, too much, or something else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from kpybroker.cli import cluster_pages
from kpybroker.cli.cluster_pages import PAGE_BYTES_MAX, ClusterPages
from kpybroker.config import parse_config
from kpybroker.world.real import real_world
from tests.cli.test_several import page

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"


def asked(answers: Mapping[int, bytes | None], path: str) -> tuple[int, str]:
    """The page of nodes that answer with these bytes; None: a node that does not answer."""

    async def ask() -> tuple[int, str]:
        servers, addresses = [], {}
        for node_id, answer in answers.items():

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes | None = answer
            ) -> None:
                await reader.readuntil(b"\r\n\r\n")
                if answer is None:
                    await reader.read()
                else:
                    writer.write(answer)
                writer.close()

            servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
            addresses[node_id] = f"127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"
        pages = ClusterPages(real_world(), parse_config({"kpybroker.http.port": "0"}), lambda: addresses)
        address = await pages.start()
        try:
            return await asyncio.to_thread(page, address, path)
        finally:
            pages.close()
            for server in servers:
                server.close()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "no answer within 0.2 s"),
        (b"", "no answer"),
        (b"nonsense\r\n\r\n", "no answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "no answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok\n", "no answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "no answer"),
        (f"HTTP/1.1 200 OK\r\nContent-Length: {PAGE_BYTES_MAX + 1}\r\n\r\n".encode(), "at most 16777216 are read"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nwhy\n", "why"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_node_that_does_not_answer_well_is_named(
    answer: bytes | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_pages, "NODE_PATIENCE_S", 0.2)
    for path in ("/healthz", "/readyz"):
        status, text = asked({1: GOOD, 2: answer, 3: GOOD}, path)
        assert status == 503
        assert text.startswith("node 2: ")
        assert text.count("\n") == 1
        assert why in text
    status, text = asked({1: GOOD, 2: answer}, "/metrics")
    assert (status, 'kpybroker_node_up{node="2"} 0.0' in text) == (200, True)
    assert 'kpybroker_node_up{node="1"} 0.0' in text, "what it answers are no metrics"


def test_the_largest_page_is_read() -> None:
    body = b"# a comment\n" + b"#" * (PAGE_BYTES_MAX - 13) + b"\n"
    good = f"HTTP/1.1 200 OK\r\nContent-Length: {PAGE_BYTES_MAX}\r\n\r\n".encode() + body
    assert len(body) == PAGE_BYTES_MAX
    assert asked({1: good}, "/readyz") == (200, "ready\n")


def test_each_metric_is_written_once_for_all_nodes() -> None:
    lines = '# HELP a_total A\n# TYPE a_total counter\na_total{b="c"} %d.0\n'
    answers = {}
    for node_id in (1, 2):
        body = (lines % node_id).encode()
        answers[node_id] = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    _, text = asked(answers, "/metrics")
    assert text.count("# TYPE a_total counter") == 1
    for node_id in (1, 2):
        assert f'a_total{{b="c",node="{node_id}"}} {node_id}.0' in text
