"""A view of a topic: what its consumers receive are the records of the topic that match, in the order of their
offsets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from kpybroker.config.view_keys import VIEW_OF, VIEW_WHERE
from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.actors.share_writing import ShareTransactor, ShareWriter
from kpybroker.sim.clients.client import SimClient
from kpybroker.sim.clients.consuming import Consumer
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import create_topic
from kpybroker.sim.cluster.setup import REPLICAS_MAX, Setup, TopicSetup
from kpybroker.sim.world.history import History, Sent
from kpybroker.topics import TopicPartition

SOURCE, VIEW = "seen", "seen.a"
SHOWN, HIDDEN = b"a", b"b"
SHOWN_ODDS = (0.1, 0.4, 0.9)
COMMITTED_ODDS = 0.5


class Views(Actor):
    """Writes records with two keys to a topic, in transactions and without, and reads a view of one of the keys."""

    name = "views"
    odds = 0.2
    checks = "what consumers of a view have received"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        random = Random(f"views {run.setup.seed}")
        self._indexes = range(random.choice((1, 2)))
        self._odds = random.choice(SHOWN_ODDS)
        self._is_committed = random.random() < COMMITTED_ODDS
        self._watcher: ViewConsumer | None = None

    @property
    def _sources(self) -> list[TopicPartition]:
        return [(SOURCE, index) for index in self._indexes]

    def preparations(self, founder: SimClient) -> list[Preparation]:
        setup: Setup = self.run.setup
        configs = {"internal.segment.bytes": "2000"}
        if setup.replicas == REPLICAS_MAX:
            configs["min.insync.replicas"] = "2"
        source = TopicSetup(SOURCE, len(self._indexes), setup.replicas, configs)
        view = TopicSetup(VIEW, -1, -1, {VIEW_OF: SOURCE, VIEW_WHERE: f'key == "{SHOWN.decode()}"'})
        return [(SOURCE, partial(create_topic, founder, source)), (VIEW, partial(create_topic, founder, view))]

    def start(self) -> None:
        run = self.run
        for name, kind in (("view writer", KeyedWriter), ("view transactor", KeyedTransactor)):
            client = run.client(name)
            run.start(client, kind(client, self._sources, self._odds, pace_s=run.pace_s))
        client = run.client("view consumer")
        self._watcher = ViewConsumer(client, self._indexes, pace_s=run.pace_s, committed=self._is_committed)
        run.start(client, self._watcher)

    async def check(self, auditor: SimClient) -> None:
        committed = self._is_committed
        source = Consumer(auditor, self._sources, max_wait_ms=100, pace_s=0.0, committed=committed, has_gaps=True)
        view = ViewConsumer(auditor, self._indexes, pace_s=0.0, committed=committed)
        await source.read_to_the_end()
        await view.read_to_the_end()
        history = self.run.history
        for index in self._indexes:
            wanted = [
                (offset, value) for offset, value in source.got[SOURCE, index] if key_of(history, index, value) == SHOWN
            ]
            for reader in (view, self._watcher):
                assert reader is not None, "it has started"
                found, end = reader.got[VIEW, index], reader.positions[VIEW, index]
                expected = [(offset, value) for offset, value in wanted if offset < end]
                if found != expected:
                    history.breach(
                        f"a consumer of {VIEW}-{index} received {len(found)} records below {end}, and not the "
                        f"{len(expected)} of {SOURCE} that match: {sorted(set(found) ^ set(expected))[:3]} differ"
                    )
            history.count("read from a view", len(wanted))


def key_of(history: History, index: int, value: bytes) -> bytes | None:
    """The key of the record with this value; None if nobody has sent it."""
    sent = history.ledger((SOURCE, index)).sent.get(value)
    return None if sent is None else sent.key


class KeyedWriter(ShareWriter):
    """Writes records with one of two keys. `odds`: the probability of the key that the view shows."""

    def __init__(self, client: SimClient, places: Sequence[TopicPartition], odds: float, *, pace_s: float) -> None:
        super().__init__(client, places, pace_s=pace_s)
        self._odds = odds

    def sents(self, place: TopicPartition, count: int) -> list[Sent]:
        return [_with_key(self._client, sent, self._odds) for sent in super().sents(place, count)]


class KeyedTransactor(ShareTransactor):
    """The same in transactions."""

    def __init__(self, client: SimClient, places: Sequence[TopicPartition], odds: float, *, pace_s: float) -> None:
        super().__init__(client, places, pace_s=pace_s)
        self._odds = odds

    def sents(self, place: TopicPartition, count: int) -> list[Sent]:
        return [_with_key(self._client, sent, self._odds) for sent in super().sents(place, count)]


def _with_key(client: SimClient, sent: Sent, odds: float) -> Sent:
    key = SHOWN if client.random.random() < odds else HIDDEN
    sent.give_key(key, is_tombstone=client.random.random() < 0.1, at_s=client.history.now_s)
    return sent


class ViewConsumer(Consumer):
    """A consumer of the view, which checks the key of each record that it receives."""

    def __init__(self, client: SimClient, indexes: Sequence[int], *, pace_s: float, committed: bool) -> None:
        places = [(VIEW, index) for index in indexes]
        super().__init__(
            client, places, max_wait_ms=100, pace_s=pace_s, committed=committed, has_gaps=True, source=SOURCE
        )

    def _take(self, place: TopicPartition, position: int, leader_epoch: int, answer: object) -> None:
        had = len(self.got[place])
        super()._take(place, position, leader_epoch, answer)
        history = self._client.history
        for offset, value in self.got[place][had:]:
            if key_of(history, place[1], value) != SHOWN:
                history.breach(f"{self._client.name} received {value!r} at {offset}, which {VIEW} does not show")
