"""One client connection: it splits the received bytes into frames, dispatches them, and sends replies in request order.

The kernel writes into the receive buffer directly and requests are views of it, so nothing is copied on the way to the
log. The views are valid until the read event ends: by then every appended batch has been written (`Hosting.flush`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

from kpybroker.call import Reply
from kpybroker.errors import MalformedFrame
from kpybroker.security.principal import ANONYMOUS, Principal
from kpybroker.server.connections.accepted import Accepted
from kpybroker.server.connections.activity import Activity
from kpybroker.server.connections.bad_frames import HEADER_BYTES_MIN, why_no_frame, why_too_large
from kpybroker.server.connections.giving_way import GivingWay
from kpybroker.server.connections.listener import ListenerState
from kpybroker.server.connections.port import Port
from kpybroker.server.connections.receive_memory import (
    BUSY_BUFFER_BYTES,
    GROWTH,
    IDLE_BUFFER_BYTES,
    next_step,
    receive_buffer,
)
from kpybroker.server.connections.writing import HELD_BACK_BYTES, OWED_LIMIT_BYTES, write_all
from kpybroker.stalls import OTHER, STALL_MS, STALL_S
from kpybroker.wire.api import Api, by_key

REPLIES_LIMIT: Final = 256
"""The maximum number of pending replies of one connection. At the limit no more requests are read."""
FLUSH_AT_ONCE: Final = 8
"""With this many pending replies, a connection flushes without waiting for the data of other connections."""
TURN_MS: Final = 5
"""How long one connection starts requests before other connections are served."""

_SIZE: Final = Struct(">i").unpack_from
_KEY_AND_VERSION: Final = Struct(">hh").unpack_from


class Connection(Accepted):
    """The asyncio protocol of one accepted socket."""

    __slots__ = (
        "_awaits_flush",
        "_buffer",
        "_filled",
        "_giving_way",
        "_owed_bytes",
        "_port",
        "_position",
        "_processing",
        "_reading_paused",
        "_replies",
        "_view",
        "_writing_paused",
        "blocker",
        "known",
        "lent",
        "principal",
    )

    def __init__(self, port: Port, listener: ListenerState) -> None:
        super().__init__(listener, port.now)
        self._port = port
        self._buffer = receive_buffer(IDLE_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = self._position = 0
        self._replies: deque[Reply | Sequence[Any]] = deque()
        self.blocker: Reply | None = None
        self._processing = False
        self._awaits_flush = False
        self._reading_paused = self._writing_paused = False
        self.lent: list[Any] = []
        self._owed_bytes = 0
        self._giving_way = GivingWay()
        self.known: dict[int, Any] = {}
        """The dispatcher's cached request headers, each with the principal, by api key and version."""
        self.principal = ANONYMOUS
        """The authenticated principal of the peer, from its certificate or its SASL login."""

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._port.admit(self):
            self.abort()
            return
        found = self.listener.principal_of(transport)
        if found is None:
            self.drop(
                "no rule of ssl.principal.mapping.rules matches the name in its certificate, or it has none that can "
                "be read; add DEFAULT"
            )
        else:
            self.principal = found

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_reading()
        self._port.forget(self)
        for reply in self._replies:
            if isinstance(reply, Reply) and not reply.done:
                reply.on_ready(None)
                reply.abandon()
        self._replies.clear()
        self.blocker = None
        self.forget_transport()
        self._let_memory_go()

    def get_buffer(self, sizehint: int) -> memoryview:
        # nothing else may happen here: uvloop's stream must not be paused or closed between this and buffer_updated
        return self._view[self._filled :] if self._filled else self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self.count_received(nbytes)
        if not self._processing:
            self._process()
        if self._awaits_flush and self._filled == len(self._buffer):
            self._port.flush_all()  # the next read needs room

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._port.unsent.hold(self)

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._port.unsent.release(self)
        self.go_on()

    def _process(self) -> None:
        self._processing = True
        if self.lent:
            self._give_back()
        port = self._port
        stalls = port.stalls
        if stalls is None:
            self._run_frames(0)
        else:
            position, counted_s, began_ms = self._position, stalls.counted_s, port.steady_ms()
            self._run_frames(began_ms + TURN_MS)
            took_ms = port.steady_ms() - began_ms
            if took_ms >= STALL_MS:
                left_s = took_ms / 1000 - (stalls.counted_s - counted_s)
                if left_s >= STALL_S:
                    stalls.add(self._last_api(position), left_s)
        if (not self._replies or self._owed_bytes > HELD_BACK_BYTES) and not port.has_unflushed():
            self.finish_event()
            return
        self._awaits_flush = True
        port.flush_soon(self)
        if len(self._replies) >= FLUSH_AT_ONCE:
            port.flush_all()

    def _last_api(self, position: int) -> str:
        """The name of the API of the last frame that ran, if the first one began at `position`; it took the most time,
        because it began within TURN_MS. OTHER if the connection was closed meanwhile."""
        api: Api | None = None
        while position + 8 <= self._position:
            size, key = _SIZE(self._buffer, position)[0], _KEY_AND_VERSION(self._buffer, position + 4)[0]
            api = by_key.get(key)
            position += 4 + size
        return OTHER if api is None else api.name

    def finish_event(self) -> None:
        """Send replies and continue: the appended data of this and other connections has been written."""
        self._awaits_flush = False
        self._send()
        self._processing = False
        if self._position == self._filled < len(self._buffer) and self.blocker is None and not self._reading_paused:
            self._position = self._filled = 0
            if self._port.memory.is_short:
                self._end_frame()
            return
        if self._has_runnable_frame():
            # in another turn: uvloop reads a socket up to 32 times per turn, and a busy client must not delay others
            self._pause_reading(True)
            asyncio.get_running_loop().call_soon(self.go_on)
            return
        if self._closing:
            return
        if self.blocker is not None:
            self._ask_blocker_to_give_way()
        self._make_room()

    def _may_run(self) -> bool:
        return not (
            self.blocker is not None
            or self._closing
            or self._writing_paused
            or len(self._replies) >= REPLIES_LIMIT
            or not self.listener.is_open
        )

    def _has_runnable_frame(self) -> bool:
        waiting = self._filled - self._position
        if waiting < 4 or not self._may_run():
            return False
        return waiting >= 4 + int(_SIZE(self._buffer, self._position)[0])

    def _run_frames(self, until_ms: int) -> None:
        """Handle frames until this time; 0 is TURN_MS after the first frame, to save a look at the clock."""
        view, end, position = self._view, self._filled, self._position
        port, replies = self._port, self._replies
        limit, dispatch, is_open = port.frame_limit_bytes, port.dispatch, self.listener.is_open
        while end - position >= 4:
            if (
                self.blocker is not None
                or self._closing
                or self._writing_paused
                or len(replies) >= REPLIES_LIMIT
                or self._owed_bytes > OWED_LIMIT_BYTES
                or not is_open
            ):
                return
            size = _SIZE(view, position)[0]
            if not HEADER_BYTES_MIN <= size <= limit:
                self.refuse_frame(why_no_frame(view[position : position + 4], limit))
                return
            stop = position + 4 + size
            if stop > end:
                return
            self._position = stop
            try:
                dispatch(self, view[position + 4 : stop])
            except MalformedFrame as malformed:
                self.refuse_frame(str(malformed))
                return
            position = stop
            if position < end:
                until_ms = until_ms or port.steady_ms() + TURN_MS
                if port.steady_ms() >= until_ms:
                    return

    def next_frame(self, least_bytes: int, most_bytes: int) -> memoryview | None:
        """Return the next frame if it is complete and may run now. A size outside the range closes the connection."""
        begin = self._position
        if self._filled - begin < 4 or not self._may_run() or self._owed_bytes > OWED_LIMIT_BYTES:
            return None
        size = int(_SIZE(self._view, begin)[0])
        if not least_bytes <= size <= most_bytes:
            self.refuse_frame(why_no_frame(self._view[begin : begin + 4], most_bytes))
            return None
        stop = begin + 4 + size
        if stop > self._filled:
            return None
        self._position = stop
        return self._view[begin + 4 : stop]

    def log_in(self, principal: Principal) -> None:
        """Set the principal of later requests."""
        self.principal = principal
        self.known.clear()

    def tell_refusal(self, why: str) -> None:
        """Log one line, and continue to serve the connection."""
        self._port.refusals.tell(self.host, "connection from %s to listener %s: %s", self.peer, self.listener.name, why)

    def refuse_frame(self, why: str) -> None:
        """Log one line, send the earlier replies, and close the connection."""
        self._port.metrics.frame_refused()
        self._port.refusals.tell(self.host, "closed connection from %s: %s", self.peer, why)
        self.close()

    def close(self) -> None:
        """Send the complete replies and close the connection. No more requests are read."""
        if self._closing:
            return
        self._port.flush()
        self._send()
        self.stop_reading()
        self._let_memory_go()
        if self.transport is not None:
            self.transport.close()

    def drop(self, why: str) -> None:
        """Log one line and close at once, without sending the remaining replies."""
        self._port.metrics.connection_dropped()
        self._port.refusals.tell(self.host, "dropped connection from %s: %s", self.peer, why)
        self.abort()

    def answer(self, buffers: Sequence[Any]) -> None:
        """Queue an encoded reply."""
        self._replies.append(buffers)
        self._owed_bytes += sum(map(len, buffers))

    def await_reply(self, reply: Reply) -> None:
        """Queue a reply that is not complete yet; unless it is parallel, the next request waits for it."""
        self._replies.append(reply)
        if not reply.parallel:
            self.blocker = reply
            reply.on_ready(self._reply_ready)

    def _reply_ready(self) -> None:
        if self.blocker is not None and (self.blocker.done or self.blocker.parallel):
            self.blocker = None
        if not self._processing:
            self._process()

    def _send(self) -> None:
        replies, transport = self._replies, self.transport
        self._owed_bytes = 0
        if not replies or transport is None or self._closing:
            return
        out: list[Any] = []
        encode = self._port.encode
        while replies:
            head = replies[0]
            if not isinstance(head, Reply):
                out += head
            elif head.done:
                if head is self.blocker:
                    self.blocker = None
                out += encode(head)
            else:
                head.on_ready(self._reply_ready)  # later replies must be sent after this one
                break
            replies.popleft()
        if len(out) == 1:
            self.count_sent(len(out[0]))
            transport.write(out[0])
        elif out:
            self.count_sent(sum(map(len, out)))
            self.lent += write_all(transport, out)
        if self._writing_paused:
            self._port.unsent.hold(self)

    def _give_back(self) -> None:
        """Return read buffers to the disk for later reads when their contents have been sent."""
        if self.transport is not None and not self.transport.get_write_buffer_size():
            for piece in self.lent:
                self._port.give_back(piece)
            self.lent.clear()

    def _ask_blocker_to_give_way(self) -> None:
        """Notify a parked Fetch that a request of another kind waits behind it."""
        if self.blocker is None or self._closing or self._processing or self._filled - self._position < 8:
            return
        key = _KEY_AND_VERSION(self._buffer, self._position + 4)[0]
        if key in self._port.urgent_keys:
            self._giving_way.ask(self.blocker, self._ask_blocker_to_give_way)

    def _make_room(self) -> None:
        """Move the remaining bytes to the front of the buffer, enlarge it for a large frame, and pause reading if it is
        full."""
        if self.blocker is not None and self.blocker.holds_frame:
            self._pause_reading(True)
            return
        left = self._filled - self._position
        if self._position:
            if self._port.memory.is_short:
                self._end_frame()
            if self._position and left:
                self._view[:left] = self._view[self._position : self._filled]
            self._position, was_filled = 0, self._filled
            self._filled = left
            size = len(self._buffer)
            is_busy = not left and was_filled == size < BUSY_BUFFER_BYTES
            if is_busy and self._port.memory.take_if_free(size * (GROWTH - 1)):
                self._resize(size * GROWTH)
        size = len(self._buffer)
        if self.blocker is None and left >= 4 and left * 2 >= size:
            needed = 4 + int(_SIZE(self._buffer, 0)[0])
            if needed > size and self._may_run():
                if (why := why_too_large(needed, self._view)) is not None:
                    self.refuse_frame(why)
                    return
                self._grow(next_step(left, needed), needed)
        self._pause_reading(left == len(self._buffer))

    def _grow(self, size: int, frame_bytes: int) -> None:
        """Enlarge the buffer to `size`, which depends on the received bytes rather than the size of the whole frame. If
        no memory is free, `go_on` is called later."""
        port = self._port
        of_a_node = self.is_of_a_node or port.limits.is_for_nodes_alone(self.listener)
        if port.memory.take(self, size - len(self._buffer), frame_bytes, of_a_node=of_a_node):
            self._resize(size)

    def shrink(self) -> None:
        """Shrink the buffer to the received part of the next frame."""
        left, size = self._filled - self._position, len(self._buffer)
        if size > max(left * GROWTH, IDLE_BUFFER_BYTES):
            self._resize(max(left * 2, IDLE_BUFFER_BYTES))
            self._port.memory.give(size - len(self._buffer))

    def _end_frame(self) -> None:
        """Release memory after a frame, so that waiting connections have it before the next frame of this one."""
        self.shrink()
        self._port.memory.frame_ended(self)

    def _let_memory_go(self) -> None:
        self._filled = self._position = 0
        self._end_frame()

    def go_on(self) -> None:
        """Continue with the received requests after a wait for memory, for the listener to open, or for the peer to
        read."""
        if not self._closing and not self._processing:
            self._process()

    def _pause_reading(self, pause: bool) -> None:
        if pause == self._reading_paused or self.transport is None:
            return
        self._reading_paused = pause
        if pause:
            self.transport.pause_reading()
        elif not self._closing:
            self.transport.resume_reading()

    def _resize(self, size: int) -> None:
        """Replace the buffer by one of another size, with the unread bytes at the front. The caller counts the
        memory."""
        buffer = receive_buffer(size)
        view, left = memoryview(buffer), self._filled - self._position
        view[:left] = self._view[self._position : self._filled]
        self._buffer, self._view = buffer, view
        self._position, self._filled = 0, left

    def stop_gracefully(self) -> None:
        """Complete waiting requests early where the protocol allows it, and close when all replies have been sent."""
        if self.blocker is not None:
            self.blocker.give_way()
        if not self._has_runnable_frame() and all(not isinstance(each, Reply) or each.done for each in self._replies):
            self.close()

    @property
    def last_reply(self) -> Reply | Sequence[Any] | None:
        """The last queued reply that has not been sent yet; None if there is none."""
        return self._replies[-1] if self._replies else None

    def replace_last(self, buffers: Sequence[Any]) -> None:
        """Send other bytes instead of the last queued reply, which is already encoded."""
        last = self._replies[-1]
        assert not isinstance(last, Reply), "a reply that is not encoded yet is changed when it is"
        self._owed_bytes += sum(map(len, buffers)) - sum(map(len, last))
        self._replies[-1] = buffers

    def look(self, now: float) -> Activity:
        """Measure the traffic, and return buffers that have been sent or are unused. Called once a second."""
        self._give_back()
        half_of_bytes, left = 0, self._filled - self._position
        if left and not self._reading_paused and not self._processing:
            half_of_bytes = 4 + int(_SIZE(self._buffer, self._position)[0]) if left >= 4 else 4
        self.activity.look(now, half_of_bytes, self.unsent_bytes)
        if not half_of_bytes:
            self._port.memory.step_back(self)
        is_held = self.blocker is not None and self.blocker.holds_frame
        if self.activity.quiet_since < now and not self._processing and not is_held:
            self.shrink()
        return self.activity

    @property
    def buffer_bytes(self) -> int:
        """The size of the receive buffer."""
        return len(self._buffer)

    @property
    def holds_memory(self) -> bool:
        """Whether the receive buffer is larger than that of an idle connection."""
        return len(self._buffer) > IDLE_BUFFER_BYTES

    @property
    def is_quiet(self) -> bool:
        """Whether no request is in progress. A partial frame is not a request."""
        return not self._replies
