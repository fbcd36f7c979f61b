"""The raw load: pre-encoded frames over non-blocking sockets, with a fixed number in flight on each connection.

Nothing is decoded under load, so that one Python process can saturate a broker. Replies to equal requests have the same
size, so they are counted by size, and every error code is checked at its known position.
"""

import select
import time
from dataclasses import dataclass

from bench.measure import LoadError
from bench.raw import Connection
from bench.target import Cpu, Target

RECEIVE_BYTES = 1024 * 1024
SILENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Load:
    """The replies, and the broker's cost. `all_replies` includes those after the end of the measured time."""

    replies: int
    elapsed_s: float
    cpu: Cpu
    all_replies: int


class Stream:
    """One connection that keeps `depth` requests in flight, cycling through frames of the same size.

    `sample`: a successful reply. `error_at`: positions of the int16 error codes in a reply.
    """

    def __init__(
        self, connection: Connection, frames: list[bytes], depth: int, sample: bytes, error_at: tuple[int, ...]
    ) -> None:
        assert len({len(each) for each in frames}) == 1, "frames of one size"
        self.socket = connection.socket
        self.socket.setblocking(False)
        self.name = connection.target.name
        self.depth = depth
        self.size_bytes = len(frames[0])
        self.cycle = -(-depth // len(frames)) * len(frames)
        self.frames = memoryview(b"".join(frames) * (2 * self.cycle // len(frames)))
        self.next = 0
        self.owed = 0
        self.unsent = memoryview(b"")
        self.in_flight = 0
        self.reply_bytes = len(sample)
        self.prefix = sample[:4]
        self.error_at = error_at
        large = self.reply_bytes * 4 > RECEIVE_BYTES
        self.buffer = bytearray(self.reply_bytes if large else RECEIVE_BYTES)
        self.view = memoryview(self.buffer)
        self.filled = 0

    def send(self, count: int) -> bool:
        """Send `count` more requests. Returns False if the socket took only a part (call `send(0)` when it is
        writable)."""
        self.owed += count
        while self.unsent or self.owed:
            if not self.unsent:
                begin, count = self.next * self.size_bytes, min(self.owed, self.cycle)
                self.unsent = self.frames[begin : begin + count * self.size_bytes]
                self.next = (self.next + count) % self.cycle
                self.owed -= count
                self.in_flight += count
            try:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
            except BlockingIOError:
                return False
        return True

    def receive(self) -> int:
        """Receive what has arrived. Returns the number of complete replies."""
        size_bytes = self.socket.recv_into(self.view[self.filled :])
        if not size_bytes:
            raise LoadError(f"{self.name} closed the connection under load")
        self.filled += size_bytes
        count = self.filled // self.reply_bytes
        if not count:
            return 0
        whole = count * self.reply_bytes
        self._check(whole)
        rest = self.filled - whole
        if rest:
            self.buffer[:rest] = self.buffer[whole : self.filled]
        self.filled = rest
        self.in_flight -= count
        return count

    def _check(self, whole: int) -> None:
        """Raise LoadError unless every reply has the size of the sample and no error."""
        step = self.reply_bytes
        last = whole - step
        good = self.buffer[:4] == self.prefix and self.buffer[last : last + 4] == self.prefix
        for at in self.error_at:
            good = good and not any(self.view[at:whole:step]) and not any(self.view[at + 1 : whole : step])
        if not good:
            raise LoadError(f"{self.name} returned an error: {bytes(self.buffer[: min(200, whole)])!r}")


def drive(target: Target, streams: list[Stream], seconds: float) -> Load:
    """Keep all streams busy for `seconds`, then wait for the requests in flight."""
    with select.epoll() as poll:
        by_descriptor = {stream.socket.fileno(): stream for stream in streams}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.EPOLLIN)
        cpu, began = target.cpu(), time.perf_counter()
        for descriptor, stream in by_descriptor.items():
            if not stream.send(stream.depth):
                poll.modify(descriptor, select.EPOLLIN | select.EPOLLOUT)
        replies = _pump(poll, by_descriptor, until=began + seconds)
        elapsed_s, used = time.perf_counter() - began, target.cpu() - cpu
        late = 0
        while any(stream.in_flight for stream in streams):
            late += _pump(poll, by_descriptor, until=0.0, more=False)
        return Load(replies, elapsed_s, used, replies + late)


def _pump(poll: select.epoll, streams: dict[int, Stream], *, until: float, more: bool = True) -> int:
    """Receive until `until`, but at least once. With `more`, send a request for each reply."""
    replies = 0
    clock = time.perf_counter
    while True:
        events = poll.poll(SILENCE_S)
        if not events:
            raise LoadError(f"no reply for {SILENCE_S:.0f} s under load")
        for descriptor, event in events:
            stream = streams[descriptor]
            count = stream.receive() if event & ~select.EPOLLOUT else 0
            replies += count
            if (count and more) or event & select.EPOLLOUT:
                _send(poll, descriptor, stream, count if more else 0, writable=bool(event & select.EPOLLOUT))
        if clock() >= until:
            return replies


def _send(poll: select.epoll, descriptor: int, stream: Stream, count: int, *, writable: bool) -> None:
    if not stream.send(count):
        poll.modify(descriptor, select.EPOLLIN | select.EPOLLOUT)
    elif writable:
        poll.modify(descriptor, select.EPOLLIN)
