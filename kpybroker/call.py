"""What a handler gets beside the request (`Call`) and what it may give back before the answer exists (`Reply`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from kpybroker.wire.codec.message import Part
    from kpybroker.wire.response_templates import Acknowledged, Fetched, FetchedMany

BROKER, CONTROLLER = "broker", "controller"
"""The two sides of a node, by the words of `Listens`: clients come in at one, nodes of the quorum at the other."""


@dataclass(slots=True, frozen=True)
class Call:
    """Who asks, and in which version. One object serves all requests of a connection that share these facts."""

    api_key: int
    version: int
    client_id: str | None
    host: str
    """The peer's IP address."""
    connection: int
    """A number that is unique among the connections of this process."""
    listener: str = "PLAINTEXT"
    side: str = BROKER
    """Which kind of listener it came in at: of the broker, or of the controller."""
    forwarded: bool = False
    """Another broker has sent it on, and has answered what a broker decides by itself."""
    is_long: bool = False
    """The request has more elements than are handled in one go."""


class Encoded(bytes):
    """A response body that is already encoded for the call's version; sent as it is."""

    __slots__ = ()


ANSWERS_LIMIT = 512


class Answers(dict[Any, Any]):
    """Encoded answers that depend on the Image alone; emptied when one is published, and when there are too many."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if len(self) >= ANSWERS_LIMIT:
            self.clear()
        super().__setitem__(key, value)


class Reply:
    """An answer on its way. The handler completes it later, the connection sends it in its turn.

    `parallel` is true where the next request of the connection may start meanwhile: only an appended Produce (DESIGN:
    "Answer in order").
    """

    __slots__ = ("_ready", "address", "done", "holds_frame", "response")

    parallel = False

    def __init__(self) -> None:
        self.address: Any = None
        """Whatever the connection needs to encode the response; the handler does not touch it."""
        self.response: Any = None
        self.done = False
        self.holds_frame = False
        """What comes next on the connection must leave the bytes of this request where they are."""
        self._ready: Callable[[], None] | None = None

    def on_ready(self, ready: Callable[[], None] | None) -> None:
        """Call `ready` once when the answer is complete; the connection's side."""
        self._ready = ready

    def complete(self, response: Any) -> None:
        """Give the answer, once; None says that none will be sent (acks=0)."""
        if self.done:
            return
        self.done = True
        self.response = response
        if self._ready is not None:
            self._ready()

    def give_way(self) -> None:
        """Another request waits behind this one: answer at once if that is legal. Default: it is not."""

    def abandon(self) -> None:
        """The peer is gone: release what waits for the answer."""

    def release_frame(self) -> None:
        """The bytes of the request are no longer needed: the connection may read on."""
        if self.holds_frame:
            self.holds_frame = False
            if self._ready is not None:
                self._ready()


Answer: TypeAlias = "Part | Encoded | Acknowledged | Fetched | FetchedMany | None"
"""What can be sent at once: a response, encoded or not, or a filled template; None where no response is wanted."""
Result: TypeAlias = "Answer | Reply | Coroutine[Any, Any, Answer | Reply]"
"""What a handler may return: an answer, a reply that is completed later, or a coroutine that ends with either."""


class TaskReply(Reply):
    """What a task works for. The task may end with another reply that is not complete yet: this one follows it then."""

    __slots__ = ("followed", "parallel", "task")

    def __init__(self) -> None:
        super().__init__()
        self.parallel = False
        self.followed: Reply | None = None
        self.task: asyncio.Task[Any] | None = None
        """What to cancel when the peer is gone; None where the work is to be done for nobody, too."""

    def follow(self, other: Reply) -> None:
        """Answer what `other` will be completed with, and be `parallel` as it is."""
        if self.done:
            other.abandon()
            return
        self.followed = other
        if other.done:
            self.complete(other.response)
            return
        other.on_ready(lambda: self.complete(other.response))
        self.parallel, self.holds_frame = other.parallel, False
        if self._ready is not None:
            self._ready()

    def give_way(self) -> None:
        if self.followed is not None:
            self.followed.give_way()

    def abandon(self) -> None:
        self.done = True
        if self.task is not None:
            self.task.cancel()
        if self.followed is not None:
            self.followed.abandon()


async def response_of(reply: Reply) -> Any:
    """What a reply is completed with; one that is waited for no longer is abandoned."""
    if not reply.done:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reply.on_ready(lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        except asyncio.CancelledError:
            reply.abandon()
            raise
    return reply.response
