"""The HTTP pages of several nodes on one port: the parent process asks each node on the loopback interface.

/metrics has the metrics of all nodes with a label `node`, and `kpybroker_node_up`. /healthz and /readyz succeed if they
succeed on every node, and otherwise name the nodes on which they do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError
from kpybroker.server.metrics.access import Access
from kpybroker.server.metrics.http import HttpServer, Page
from kpybroker.world import World

NODE_PATIENCE_S = 5.0
"""The time within which a node must answer."""
PAGE_BYTES_MAX = 16 << 20
"""The largest page of a node."""
OK = 200


class NodePage(NamedTuple):
    """The answer of one node. `status` is 0 if it did not answer, and `text` says why."""

    status: int
    text: str


STARTING = NodePage(0, "the node is starting")


class ClusterPages:
    """Serves the pages. `addresses` returns host:port of each node's own pages by node id, empty while it is unknown.

    Call `start`, then `close`.
    """

    def __init__(self, world: World, config: BrokerConfig, addresses: Callable[[], Mapping[int, str]]) -> None:
        """`config` has the address, and the TLS and the token of the pages."""
        self._world = world
        self._config = config
        self._addresses = addresses
        answers = {"/metrics": self._metrics, "/healthz": self._health, "/readyz": self._readiness}
        self._http = HttpServer(world.network, answers)
        self._access: Access | None = None

    async def start(self) -> str:
        """Listen, and return host:port. Raises ConfigError."""
        host, port = self._config.http_host, self._config.http_port
        assert port is not None, "started only if there is a port"
        self._access = Access(self._world, lambda: self._config)
        try:
            port = await self._http.start(host, port, self._access)
        except OSError as error:
            raise ConfigError(
                f"kpybroker.http.port: cannot listen on {host or '*'}:{port}: {error.strerror or error}; choose "
                "another one, or 0 for a free one"
            ) from error
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Stop serving."""
        self._http.close()
        if self._access is not None:
            self._access.close()

    async def _health(self, headers: Mapping[str, str]) -> Page:
        # a node that is starting may take long, and must not be killed for that
        pages = await self._ask("/healthz", headers)
        return _of_all({node_id: page for node_id, page in pages.items() if page is not STARTING}, b"ok\n")

    async def _readiness(self, headers: Mapping[str, str]) -> Page:
        return _of_all(await self._ask("/readyz", headers), b"ready\n")

    async def _metrics(self, headers: Mapping[str, str]) -> Page:
        pages = await self._ask("/metrics", headers)
        encode, content_type = choose_encoder(headers.get("accept", ""))
        registry = CollectorRegistry()
        registry.register(_Collected(pages))
        return Page(OK, encode(registry), content_type)

    async def _ask(self, path: str, headers: Mapping[str, str]) -> dict[int, NodePage]:
        addresses = self._addresses()
        token = headers.get("authorization", "")
        pages = await asyncio.gather(*(_fetch(address, path, token) for address in addresses.values()))
        return dict(zip(addresses, pages, strict=True))


class _Collected:
    """The metrics of all nodes, as a collector of prometheus_client."""

    def __init__(self, pages: Mapping[int, NodePage]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("kpybroker_node_up", "1 if the node has answered with its metrics", labels=["node"])
        every: dict[str, Metric] = {}
        for node_id, page in self._pages.items():
            families = _families(page)
            up.add_metric([str(node_id)], 0.0 if families is None else 1.0)
            for family in families or ():
                whole = every.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    whole.samples.append(sample._replace(labels={"node": str(node_id), **sample.labels}))
        yield up
        yield from every.values()


def _families(page: NodePage) -> list[Metric] | None:
    """The metrics of a page; None if it has none, for example because another program now has the port."""
    try:
        return list(text_string_to_metric_families(page.text)) if page.status == OK else None
    except (ValueError, IndexError):
        return None


def _of_all(pages: Mapping[int, NodePage], good: bytes) -> Page:
    wrong = [f"node {node_id}: {page.text.strip()}\n" for node_id, page in pages.items() if page.status != OK]
    return Page(503, "".join(wrong).encode()) if wrong else Page(OK, good)


async def _fetch(address: str, path: str, token: str) -> NodePage:
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return STARTING
    try:
        async with asyncio.timeout(NODE_PATIENCE_S):
            return await _exchange(host, int(port), path, token)
    except TimeoutError:
        return NodePage(0, f"no answer within {NODE_PATIENCE_S:g} s")
    except (OSError, EOFError, asyncio.LimitOverrunError, ValueError) as error:
        return NodePage(0, f"no answer ({error})")


async def _exchange(host: str, port: int, path: str, token: str) -> NodePage:
    """Get a page of `server/metrics/http.py`, which always has a length. Raises OSError, EOFError, LimitOverrunError,
    ValueError."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        authorization = f"Authorization: {token}\r\n" if token else ""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{authorization}\r\n".encode("latin-1"))
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        lengths = [line.partition(":")[2] for line in lines if line.lower().startswith("content-length:")]
        length = int(lengths[0]) if lengths else 0
        if length > PAGE_BYTES_MAX:
            raise ValueError(f"a page of {length} bytes, at most {PAGE_BYTES_MAX} are read")
        _, code, *_ = status.split(" ")
        return NodePage(int(code), (await reader.readexactly(length)).decode(errors="replace"))
    finally:
        writer.close()
