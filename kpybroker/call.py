"""The arguments of a handler besides the request (`Call`), and the types that it may return (`Result`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from kpybroker.security.principal import ANONYMOUS, Principal
from kpybroker.wire.encoded import Encoded

if TYPE_CHECKING:
    from kpybroker.wire.response_templates import Acknowledged, Fetched, FetchedMany

BROKER, CONTROLLER = "broker", "controller"
"""The two kinds of listeners, named as in `Listens`: clients connect to the broker's, nodes of the quorum to the
controller's."""


@dataclass(slots=True, frozen=True)
class Call:
    """The caller and the version of a request. Requests of a connection with equal values share one object."""

    api_key: int
    version: int
    client_id: str | None
    host: str
    """The peer's IP address."""
    connection: int
    """A number that is unique among the connections of this process."""
    listener: str = "PLAINTEXT"
    side: str = BROKER
    """The kind of listener that received the request: the broker's or the controller's."""
    forwarded: bool = False
    """Whether another broker forwarded the request, after it had processed the parts that concern only the broker."""
    is_long: bool = False
    """Whether the request has more elements than are handled in one turn of the event loop."""
    principal: Principal = ANONYMOUS
    """The principal that sent the request; for a forwarded request, the one that sent it to the other broker."""
    granted: dict[str, object] = field(default_factory=dict, compare=False, repr=False)
    """By topic, the value of the authorizer's `grants` when it last allowed this call's API on the topic."""


ANSWERS_LIMIT = 512
ANSWERS_MAX_BYTES = 32 * 1024 * 1024


class Answers:
    """A cache of encoded responses that depend only on the Image; cleared when it is full, or an Image is published.

    Clients choose the keys, so the limit counts the bytes of keys and responses.
    """

    __slots__ = ("_found", "size_bytes")

    def __init__(self) -> None:
        self._found: dict[Any, Encoded | asyncio.Future[Encoded]] = {}
        self.size_bytes = 0
        """Bytes of the complete responses and their keys, at most ANSWERS_MAX_BYTES."""

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Any) -> Encoded | asyncio.Future[Encoded] | None:
        """A cached response, or the future of a response that is being built."""
        return self._found.get(key)

    def keep(self, key: Any, answer: Encoded | asyncio.Future[Encoded], key_bytes: int) -> None:
        """Cache a response. The bytes of a future are counted once it is complete; a future that fails is removed."""
        if len(self._found) >= ANSWERS_LIMIT:
            self.clear()
        if isinstance(answer, Encoded):
            self._add(key, answer, key_bytes)
            return
        self._found[key] = answer
        answer.add_done_callback(lambda done: self._complete(key, done, key_bytes))

    def _complete(self, key: Any, done: asyncio.Future[Encoded], key_bytes: int) -> None:
        if self._found.get(key) is not done:
            return  # cleared in the meantime
        del self._found[key]
        if not done.cancelled() and done.exception() is None:
            self._add(key, done.result(), key_bytes)

    def _add(self, key: Any, answer: Encoded, key_bytes: int) -> None:
        size_bytes = key_bytes + len(answer)
        if size_bytes > ANSWERS_MAX_BYTES:
            return
        if self.size_bytes + size_bytes > ANSWERS_MAX_BYTES:
            self.clear()
        self._found[key] = answer
        self.size_bytes += size_bytes

    def clear(self) -> None:
        """Remove all responses, for example when another Image is published."""
        self._found.clear()
        self.size_bytes = 0


class Reply:
    """A response that the handler completes later. The connection sends responses in the order of the requests.

    `parallel`: the next request of the connection may start before this one is complete. Only a Produce request whose
    records are appended sets it.
    """

    __slots__ = ("_ready", "address", "attached", "done", "holds_frame", "response")

    parallel = False

    def __init__(self, *, holds_frame: bool = False) -> None:
        self.address: Any = None
        """Api, version and correlation id, which the connection needs to encode the response."""
        self.attached: Any = None
        """Data that an interceptor of the server attaches to the reply until it is sent."""
        self.response: Any = None
        self.done = False
        self.holds_frame = holds_frame
        """Whether the bytes of this request must stay in the receive buffer while it is processed."""
        self._ready: Callable[[], None] | None = None

    def address_to(self, api: Any, version: int, correlation_id: int) -> None:
        """Set the values that the connection needs to encode the response."""
        self.address = (api, version, correlation_id)

    def attach(self, attached: Any) -> None:
        """Attach data to the reply until it is sent."""
        self.attached = attached

    def replace(self, response: Any) -> None:
        """Replace the response that was passed to `complete`."""
        self.response = response

    def on_ready(self, ready: Callable[[], None] | None) -> None:
        """Call `ready` when the response is complete, or the request's frame is released; for the connection."""
        self._ready = ready

    def complete(self, response: Any) -> None:
        """Set the response. Only the first call has an effect. For None, no response is sent (acks=0)."""
        if self.done:
            return
        self.done = True
        self.response = response
        ready, self._ready = self._ready, None  # `ready` may hold this reply: no cycle is left for the collector
        if ready is not None:
            ready()

    def discard(self) -> None:
        """Mark the reply as done without a response, so that none is sent."""
        self.done = True
        self._ready = None

    def give_way(self) -> None:
        """Called when another request waits for this one. Completes the reply at once if the protocol allows that; by
        default, it does nothing."""

    def abandon(self) -> None:
        """Called when the connection is closed. Releases everything that waits for the response."""

    def release_frame(self) -> None:
        """Let the connection reuse its buffer, because the bytes of the request are no longer needed."""
        if self.holds_frame:
            self.holds_frame = False
            if self._ready is not None:
                self._ready()


Message: TypeAlias = Any
"""A message of the API, as `wire/rpc` declares it. For type checkers, these classes have no common base."""
Answer: TypeAlias = "Message | Encoded | Acknowledged | Fetched | FetchedMany | None"
"""A complete response: a message, encoded bytes, or a filled template; None if no response is to be sent."""
Result: TypeAlias = "Answer | Reply | Coroutine[Any, Any, Answer | Reply]"
"""The result of a handler: a response, a Reply that is completed later, or a coroutine that returns either."""


class TaskReply(Reply):
    """A reply that a task completes. If the task returns another reply, both are completed together."""

    __slots__ = ("followed", "parallel", "task")

    def __init__(self, *, holds_frame: bool = False) -> None:
        super().__init__(holds_frame=holds_frame)
        self.parallel = False
        self.followed: Reply | None = None
        self.task: asyncio.Task[Any] | None = None
        """The task to cancel when the connection is closed; None if the work must be finished anyway."""

    def cancel_if_abandoned(self, task: asyncio.Task[Any]) -> None:
        """Cancel this task if the connection is closed, because its work need not be finished then."""
        self.task = task

    def follow(self, other: Reply) -> None:
        """Complete with the response of `other`, and take over its `parallel`."""
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
        self.discard()
        if self.task is not None:
            self.task.cancel()
        if self.followed is not None:
            self.followed.abandon()


async def response_of(reply: Reply) -> Any:
    """Wait for the response of a reply. If the wait is cancelled, the reply is abandoned."""
    if not reply.done:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reply.on_ready(lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        except asyncio.CancelledError:
            reply.abandon()
            raise
    return reply.response
