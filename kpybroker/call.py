"""The arguments of a handler besides the request (`Call`), and the types that it may return (`Result`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from kpybroker.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from kpybroker.wire.response_templates import Acknowledged, Fetched, FetchedMany

BROKER, CONTROLLER = "broker", "controller"
"""The two sides of a node, named as in `Listens`: clients connect to one, nodes of the quorum to the other."""


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
    """Whether another broker forwarded the request, after it removed the parts that a broker decides itself."""
    is_long: bool = False
    """Whether the request has more elements than are handled in one go."""
    principal: Principal = ANONYMOUS
    """Who sent the request; for a forwarded one, who sent it to the other broker."""
    granted: dict[str, object] = field(default_factory=dict, compare=False, repr=False)
    """By topic, the value of the authorizer's `grants` when it last allowed this call's API on the topic."""


class Encoded(bytes):
    """A response body that is already encoded for the call's version. It is sent unchanged."""

    __slots__ = ()


ANSWERS_LIMIT = 512
ANSWERS_MAX_BYTES = 32 * 1024 * 1024


class Answers:
    """A cache of encoded responses that depend only on the Image; cleared when it is full, or an Image is published.

    A client chooses the keys, so the bytes of both count.
    """

    __slots__ = ("_found", "size_bytes")

    def __init__(self) -> None:
        self._found: dict[Any, Encoded | asyncio.Future[Encoded]] = {}
        self.size_bytes = 0
        """At most ANSWERS_MAX_BYTES, as far as the responses are complete."""

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Any) -> Encoded | asyncio.Future[Encoded] | None:
        """A response, or the future of one that is being built."""
        return self._found.get(key)

    def keep(self, key: Any, answer: Encoded | asyncio.Future[Encoded], key_bytes: int) -> None:
        """Keep a response, which is counted when it is complete; one that fails is not kept."""
        if len(self._found) >= ANSWERS_LIMIT:
            self.clear()
        if isinstance(answer, Encoded):
            self._add(key, answer, key_bytes)
            return
        self._found[key] = answer
        answer.add_done_callback(lambda done: self._complete(key, done, key_bytes))

    def _complete(self, key: Any, done: asyncio.Future[Encoded], key_bytes: int) -> None:
        if self._found.get(key) is not done:
            return  # cleared meanwhile
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
        """Another Image was published: forget all responses."""
        self._found.clear()
        self.size_bytes = 0


class Reply:
    """An answer that comes later. The handler completes it, and the connection sends answers in request order.

    `parallel`: the next request of the connection may start meanwhile. Only an appended Produce allows that.
    """

    __slots__ = ("_ready", "address", "attached", "done", "holds_frame", "response")

    parallel = False

    def __init__(self, *, holds_frame: bool = False) -> None:
        self.address: Any = None
        """Api, version and correlation id: what the connection needs to encode the response."""
        self.attached: Any = None
        """Data that an interceptor of the server attaches to the reply until it is sent."""
        self.response: Any = None
        self.done = False
        self.holds_frame = holds_frame
        """Whether the bytes of this request must stay in the receive buffer while it is processed."""
        self._ready: Callable[[], None] | None = None

    def address_to(self, api: Any, version: int, correlation_id: int) -> None:
        """Set what the connection needs to encode the response."""
        self.address = (api, version, correlation_id)

    def attach(self, attached: Any) -> None:
        """Attach data to the reply until it is sent."""
        self.attached = attached

    def replace(self, response: Any) -> None:
        """Send another response instead of the one that it was completed with."""
        self.response = response

    def on_ready(self, ready: Callable[[], None] | None) -> None:
        """Call `ready` once when the answer is complete; for the connection."""
        self._ready = ready

    def complete(self, response: Any) -> None:
        """Give the answer. Only the first call has an effect. None: no response is sent (acks=0)."""
        if self.done:
            return
        self.done = True
        self.response = response
        if self._ready is not None:
            self._ready()

    def discard(self) -> None:
        """The answer is not wanted any more: it is not sent."""
        self.done = True

    def give_way(self) -> None:
        """Another request waits behind this one: answer at once if the protocol allows that. By default it does not."""

    def abandon(self) -> None:
        """The connection is closed: release everything that waits for the answer."""

    def release_frame(self) -> None:
        """The bytes of the request are no longer needed: the connection may reuse its buffer."""
        if self.holds_frame:
            self.holds_frame = False
            if self._ready is not None:
                self._ready()


Message: TypeAlias = Any
"""A message of the API, as `wire/rpc` declares it; to a type checker these classes have no base in common."""
Answer: TypeAlias = "Message | Encoded | Acknowledged | Fetched | FetchedMany | None"
"""An answer that can be sent at once: a response, encoded or not, or a filled template; None if none is wanted."""
Result: TypeAlias = "Answer | Reply | Coroutine[Any, Any, Answer | Reply]"
"""What a handler may return: an answer, a reply that is completed later, or a coroutine that ends with either."""


class TaskReply(Reply):
    """The reply of a task. If the task ends with another reply that is not complete yet, this one follows that."""

    __slots__ = ("followed", "parallel", "task")

    def __init__(self, *, holds_frame: bool = False) -> None:
        super().__init__(holds_frame=holds_frame)
        self.parallel = False
        self.followed: Reply | None = None
        self.task: asyncio.Task[Any] | None = None
        """The task to cancel when the connection is closed; None if the work must be finished anyway."""

    def cancel_if_abandoned(self, task: asyncio.Task[Any]) -> None:
        """The work need not be finished once the connection is closed."""
        self.task = task

    def follow(self, other: Reply) -> None:
        """Complete with the answer of `other`, and take over its `parallel`."""
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
    """Wait for the answer of a reply. If the wait is cancelled, the reply is abandoned."""
    if not reply.done:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reply.on_ready(lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        except asyncio.CancelledError:
            reply.abandon()
            raise
    return reply.response
