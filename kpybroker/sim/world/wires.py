"""The links of the simulated network: they determine whether and when a piece of a stream reaches another address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from kpybroker.sim.world.history import History
from kpybroker.sim.world.loop import VirtualLoop

WINDOW_BYTES = 64 * 1024


@dataclass(slots=True)
class Weather:
    """The delays of all links in seconds, the probability and maximum duration of a stall, and the probability that
    data arrives in two pieces."""

    delay_s: float = 0.0003
    jitter_s: float = 0.0003
    stall_odds: float = 0.002
    stall_s: float = 0.08
    split_odds: float = 0.05


@dataclass(slots=True)
class Link:
    """One direction between two hosts."""

    is_cut: bool = False
    slow_s: float = 0.0
    held: dict[Callable[[], None], None] = field(default_factory=dict)
    """Callbacks of pipes that have pieces to deliver once the link is restored."""

    def release(self) -> None:
        """Deliver the pieces that were held back."""
        held, self.held = self.held, {}
        for go_on in held:
            go_on()


class Wires:
    """All links between addresses, their delays, and the addresses without power."""

    def __init__(self, loop: VirtualLoop, random: Random, history: History, weather: Weather) -> None:
        self.loop = loop
        self.random = random
        self.history = history
        self.weather = weather
        self.window_bytes = WINDOW_BYTES
        self._links: dict[tuple[str, str], Link] = {}
        self._dark: set[str] = set()

    def link(self, source: str, target: str) -> Link:
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link()
        return found

    def delay_s(self, link: Link) -> float:
        random, weather = self.random.random, self.weather
        delay = weather.delay_s + link.slow_s + random() * weather.jitter_s
        if random() < weather.stall_odds:
            delay += random() * weather.stall_s
        return delay

    def passes(self, source: str, target: str) -> bool:
        return not self.link(source, target).is_cut and target not in self._dark

    def has_power(self, address: str) -> bool:
        return address not in self._dark

    # ---- faults

    def narrow(self, window_bytes: int) -> None:
        """Set the window, the maximum number of bytes in flight in one direction of a stream."""
        self.window_bytes = window_bytes

    def cut(self, source: str, target: str) -> None:
        """Deliver nothing from the source to the target. The other direction still works."""
        self.link(source, target).is_cut = True

    def slow(self, source: str, target: str, seconds: float) -> None:
        self.link(source, target).slow_s = seconds

    def heal(self) -> None:
        """Restore every link to normal speed, and deliver the pieces that were held back."""
        for link in self._links.values():
            link.is_cut, link.slow_s = False, 0.0
            link.release()

    def calm(self) -> None:
        """Restore every link, and use the default delays and window from now on."""
        self.heal()
        self.weather = Weather()
        self.window_bytes = WINDOW_BYTES

    def power(self, address: str, on: bool) -> None:
        """Switch a host off or on. Without power, it sends nothing. When it is back, it responds to old streams with an
        RST."""
        if not on:
            self._dark.add(address)
            return
        self._dark.discard(address)
        for (_, target), link in list(self._links.items()):
            if target == address and not link.is_cut:
                link.release()
