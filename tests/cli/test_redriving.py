"""Law: each dead letter goes home once, whatever filters are used, wherever a redrive is killed, and however many run.

The redrives run against a real broker, with clients that die at a given request: before it is sent, or before its
response is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kpybroker.cli import consuming, redriven
from kpybroker.cli.json_lines import Outgoing
from kpybroker.cli.letters import Letter
from kpybroker.cli.producing import RecordSender, SendOptions
from kpybroker.cli.redriving import Counts, Redriver
from kpybroker.client.client import Client, CommandFailed, parse_bootstrap
from kpybroker.client.dialer import client_dialer
from kpybroker.client.transaction import Transactions
from kpybroker.shares.dead_letters import PARTITION, TOPIC
from kpybroker.testing import Broker
from kpybroker.world.real import real_world
from tests.cli.shell import Shell

KEYS = "abc"
LETTERS_MAX = 12
TIMEOUT_MS = 15_000


class Killed(Exception):
    """The process of a client has ended: nothing of it runs any more."""


class MortalClient(Client):
    """A client that dies at its request number `dies_at`, before it is sent or, if `answered`, after it has been
    handled. Before its request number `pauses_at`, it waits until `other` has ended."""

    def __init__(
        self,
        bootstrap: str,
        dies_at: int | None = None,
        *,
        answered: bool = False,
        pauses_at: int | None = None,
        other: asyncio.Event,
    ) -> None:
        super().__init__(client_dialer(real_world(), {}), parse_bootstrap(bootstrap), TIMEOUT_MS)
        self._left = dies_at
        self._answered = answered
        self._until_pause = pauses_at
        self._other = other

    async def ask(self, name: str, request: Any, **more: Any) -> Any:
        if self._until_pause is not None:
            self._until_pause -= 1
            if self._until_pause == 0:
                await self._other.wait()
        if self._left is None:
            return await super().ask(name, request, **more)
        self._left -= 1
        if self._left < 0 or (self._left == 0 and not self._answered):
            raise Killed
        told = await super().ask(name, request, **more)
        if self._left == 0:
            raise Killed
        return told


class Write(NamedTuple):
    """Letters with these keys are written: each in its own batch or, with `in_one`, in one transaction."""

    keys: str
    in_one: bool
    is_aborted: bool


class Redrive(NamedTuple):
    """One or two redrives run at once: the keys that they send, their maximum, the request at which they die, and the
    one at which the second waits for the end of the first."""

    keys: tuple[str, ...]
    most: int | None = None
    dies_at: int | None = None
    answered: bool = False
    pauses_at: int | None = None


writes = st.builds(Write, st.text(KEYS, min_size=1, max_size=LETTERS_MAX), st.booleans(), st.booleans())
redrives = st.builds(
    Redrive,
    keys=st.lists(st.sampled_from(["a", "b", "ab", "abc"]), min_size=1, max_size=2).map(tuple),
    most=st.none() | st.integers(1, 5),
    dies_at=st.none() | st.integers(1, 40),
    answered=st.booleans(),
    pauses_at=st.none() | st.integers(1, 30),
)


class World:
    """A topic, a topic with its dead letters, and what was written."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.home = broker.topic("home", partitions=2)
        self.dead = broker.topic("dead", partitions=2)
        self.written: list[str] = []

    def run(
        self, *scenarios: Callable[[Client], Awaitable[None]], pauses_at: int | None = None, **of: Any
    ) -> list[BaseException | None]:
        """Run scenarios at the same time, each with its own client. `pauses_at` is for the second."""

        async def every() -> list[BaseException | None]:
            first = asyncio.Event()

            async def one(number: int, scenario: Callable[[Client], Awaitable[None]]) -> None:
                pauses = pauses_at if number else None
                client = MortalClient(self.broker.bootstrap, pauses_at=pauses, other=first, **of)
                try:
                    await client.start()
                    await scenario(client)
                finally:
                    client.close()
                    if number == 0:
                        first.set()

            return await asyncio.gather(*(one(*each) for each in enumerate(scenarios)), return_exceptions=True)

        return asyncio.run(every())

    def write(self, what: Write, meanwhile: Callable[[], None] | None = None) -> None:
        """Write letters. `meanwhile` is called when they were sent, before the transaction ends."""
        ids = [f"{key}{len(self.written) + number}" for number, key in enumerate(what.keys)]

        async def send(client: Client) -> None:
            transactions = Transactions(client, f"{self.dead}-writer") if what.in_one else None
            if transactions is not None:
                await transactions.start()
            sender = RecordSender(client, self.dead, SendOptions(), transactions)
            await sender.start()
            for number, name in enumerate(ids):
                origin = str(number % 2).encode()
                headers = ((TOPIC, self.home.encode()), (PARTITION, origin))
                await sender.add([Outgoing(name[0].encode(), name.encode(), headers, number % 2)])
                if transactions is None:
                    await sender.flush()
            await sender.flush()
            if meanwhile is not None:
                await asyncio.to_thread(meanwhile)
            if transactions is not None:
                await transactions.end(commits=not what.is_aborted)

        assert self.run(send) == [None]
        if not (what.in_one and what.is_aborted):
            self.written += ids

    def redrive(self, what: Redrive) -> list[Counts]:
        """The counts of the redrives that were not killed or fenced."""
        done = []

        def scenario(keys: str) -> Callable[[Client], Awaitable[None]]:
            def matches(letter: Letter) -> bool:
                return (letter.record.key or b"").decode() in keys

            async def redrive(client: Client) -> None:
                redriver = Redriver(client, self.dead, matches, most=what.most)
                assert not await redriver.run(lambda *_: None)
                done.append(redriver.counts)

            return redrive

        ended = self.run(
            *map(scenario, what.keys), dies_at=what.dies_at, answered=what.answered, pauses_at=what.pauses_at
        )
        for error in ended:
            assert error is None or isinstance(error, Killed | CommandFailed), repr(error)
            assert not isinstance(error, CommandFailed) or "another redrive" in str(error)
        return done

    def at_home(self, count: int) -> list[str]:
        found = self.broker.expect(self.home, count, committed_only=True)
        return sorted((each.value or b"").decode() for each in found)


@given(steps=st.lists(writes | redrives, min_size=1, max_size=8))
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_letter_goes_home_once(
    kpybroker: Broker, monkeypatch: pytest.MonkeyPatch, steps: list[Write | Redrive]
) -> None:
    monkeypatch.setattr(consuming, "FETCH_BYTES", 1)  # a page, and so a transaction, is one batch of each partition
    world = World(kpybroker)
    for step in steps:
        if isinstance(step, Write):
            world.write(step)
            continue
        done = world.redrive(step)
        alone = len(step.keys) == 1 and step.dies_at is None
        assert len(done) == 1 or not alone
        if alone and step.most is None:
            wanted = {name for name in world.written if name[0] in step.keys[0]}
            assert wanted <= set(world.at_home(len(wanted)))
    assert len(world.redrive(Redrive((KEYS,)))) == 1
    assert world.at_home(len(world.written)) == sorted(world.written)
    assert world.redrive(Redrive((KEYS,)))[0].sent.total() == 0


@pytest.mark.parametrize("most", range(1, 4))
def test_a_maximum_is_exact(kpybroker: Broker, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(consuming, "FETCH_BYTES", 1)
    world = World(kpybroker)
    world.write(Write("aaa", in_one=True, is_aborted=False))
    world.write(Write("aaaa", in_one=False, is_aborted=False))
    sent = 0
    while sent < len(world.written):
        (counts,) = world.redrive(Redrive(("a",), most))
        assert counts.sent.total() == min(most, len(world.written) - sent)
        sent += most
    assert world.at_home(len(world.written)) == sorted(world.written)


def test_letters_with_too_many_gaps_are_left(kpybroker: Broker, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    """What fits is sent, and the rest is for the next redrive."""
    monkeypatch.setattr(redriven, "METADATA_MAX", 40)
    world = World(kpybroker)
    world.write(
        Write("aabbaababbbabaaabbaabbbbaabbbabaaabaabbaababbbabaaabbaabbbbaabbbabaaaba", in_one=True, is_aborted=False)
    )
    told = shell("dlq", "redrive", world.dead, "--where", 'key == "a"', "--execute", "--json")
    assert told.code == 1
    assert "stopped before the dead letter" in told.err
    assert "first redrive letters in the gaps, with another --where" in told.err
    sent = told.json["topics"][0]["sent"]
    assert 0 < sent < sum(name[0] == "a" for name in world.written)
    assert len(world.at_home(sent)) == sent
    again = shell("dlq", "redrive", world.dead, "--where", 'key == "a"', "--execute", "--json")
    assert (again.code, again.json["topics"]) == (1, []), "no room, until the gaps are filled"
    assert shell("dlq", "redrive", world.dead, "--execute", "--json").json["topics"][0]["sent"] > 0
    assert world.at_home(len(world.written)) == sorted(world.written)


def test_a_broker_that_takes_less_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is aborted, so nothing was sent."""
    with Broker({"offset.metadata.max.bytes": 10}, in_thread=True) as broker:
        world, shell = World(broker), Shell(broker.bootstrap, monkeypatch)
        world.write(Write("bbaabbaa", in_one=True, is_aborted=False))
        told = shell("dlq", "redrive", world.dead, "--where", 'key == "a"', "--execute")
        assert told.code == 1
        assert "raise its offset.metadata.max.bytes, or redrive without --where" in told.err
        assert world.at_home(0) == []
        assert shell("dlq", "redrive", world.dead, "--execute").code == 0
        assert world.at_home(8) == sorted(world.written)


@pytest.mark.parametrize("answered", [False, True])
def test_a_redrive_may_be_killed_at_each_request(kpybroker: Broker, answered: bool) -> None:
    world, dies_at, done = World(kpybroker), 0, list[Counts]()
    while not done:
        dies_at += 1
        world.write(Write("abc", in_one=False, is_aborted=False))
        done = world.redrive(Redrive((KEYS,), dies_at=dies_at, answered=answered))
        world.redrive(Redrive((KEYS,)))
        assert world.at_home(len(world.written)) == sorted(world.written)
    assert dies_at > 10


def test_a_redrive_may_begin_at_each_request_of_another(kpybroker: Broker) -> None:
    world = World(kpybroker)
    for pauses_at in range(1, 30):
        world.write(Write("abc", in_one=False, is_aborted=False))
        assert world.redrive(Redrive((KEYS, KEYS), pauses_at=pauses_at))
        assert world.at_home(len(world.written)) == sorted(world.written)


def test_letters_of_an_open_transaction_are_left(kpybroker: Broker) -> None:
    world = World(kpybroker)
    world.write(Write("ab", in_one=False, is_aborted=False))

    def redrive() -> None:
        assert [each.sent.total() for each in world.redrive(Redrive((KEYS,)))] == [2]

    world.write(Write("abc", in_one=True, is_aborted=False), redrive)
    assert [each.sent.total() for each in world.redrive(Redrive((KEYS,)))] == [3]
    assert world.at_home(len(world.written)) == sorted(world.written)
