"""A model of a quorum for tests of `raft.core`: simulated nodes on an unreliable network. The voters may change.

Each node has a state, a log with a synced part, and a vote on disk. Time is virtual. Messages are lost, delayed,
duplicated and reordered. A crash keeps the synced part of the log, and any number of the records after it. Every commit
is compared with the earlier commits of all nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from kpybroker.raft.core import state as raft
from kpybroker.raft.core.core import step
from kpybroker.raft.core.divergence import Agrees, Diverges, NeedsSnapshot, compare, truncation
from kpybroker.raft.core.state import Role, State, Tail, Timeouts, Voted

BATCH = 3
FETCH_EVERY_MS = 50
FETCH_PATIENCE_MS = 400


class Entry(NamedTuple):
    epoch: int
    value: int
    voters: tuple[int, ...] | None = None
    """The voters from this record on; None in all other records."""


class Fetch(NamedTuple):
    number: int
    epoch: int
    tail: Tail


class FetchReply(NamedTuple):
    number: int
    epoch: int
    leader_id: int
    outcome: Agrees | Diverges | NeedsSnapshot | None = None
    entries: tuple[Entry, ...] = ()
    start: int = 0
    high_watermark: int = 0


def epochs_of(log: Sequence[Entry]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset, entry in enumerate(log):
        if not found or entry.epoch > found[-1][0]:
            found.append((entry.epoch, offset))
    return found


@dataclass
class Node:
    node_id: int
    state: State
    voted: Voted = field(default_factory=Voted)
    log: list[Entry] = field(default_factory=list)
    synced: int = 0
    start: int = 0
    """The offset below which records are only in a snapshot."""
    up: bool = True
    life: int = 0
    is_new: bool = False
    has_lost: bool = False
    """Whether the node lost its directory and has not caught up since."""
    fetch: tuple[int, int] | None = None
    """The number of the fetch in progress, and the time at which it times out."""

    @property
    def tail(self) -> Tail:
        return Tail(self.log[-1].epoch if self.log else 0, len(self.log))


class Quorum:
    """The nodes of a quorum: voters 1..n, and observers with higher ids. `run` lets time pass."""

    def __init__(
        self, seed: int, voters: int, observers: int = 0, *, persist: bool = True, new_voters_wait: bool = True
    ) -> None:
        self.random = Random(seed)
        self.now = 0
        self.voters = tuple(range(1, voters + 1))
        self.timing = Timeouts(election_timeout_ms=300, election_backoff_max_ms=200, fetch_timeout_ms=600)
        self.nodes = {
            number: Node(number, State(number, self.voters, timing=self.timing))
            for number in range(1, voters + observers + 1)
        }
        self.persist = persist
        self.loss = self.doubling = 0.0
        self.delay_ms = 5
        self.cut: set[tuple[int, int]] = set()
        self.committed: list[Entry] = []
        self.leaders: dict[int, int] = {}
        self.values = 0
        self.changes_with_care = True
        """Whether leaders change the voters only when Raft allows it."""
        self.new_voters_wait = new_voters_wait
        """Whether a voter on an empty directory votes only for candidates with empty logs until it has caught up, as at
        kraft.version 0."""
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._fetches = 0
        for node in self.nodes.values():
            node.is_new = new_voters_wait and node.node_id in self.voters
            node.state = node.state._replace(is_new=node.is_new)
            self.step(node, raft.Start())
            self._beat(node)

    # ---- time

    def later(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay_ms, self._count, act))

    def run(self, until_ms: int) -> None:
        while self._events and self._events[0][0] <= until_ms:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = until_ms

    def _beat(self, node: Node) -> None:
        """Let a node tick, sync and fetch, and repeat this after a random delay."""

        def act() -> None:
            if node.up:
                if node.state.wake_ms is not None and node.state.wake_ms <= self.now:
                    self.step(node, raft.TimerTick())
                if node.synced < len(node.log) and self.random.random() < 0.3:
                    self._sync(node)
                self._fetch(node)
            self._beat(node)

        self.later(1 + self.random.randrange(20), act)

    # ---- the network

    def send(self, source: int, to: int, act: Callable[[Node], None]) -> None:
        """Run `act` on a node after a delay: once, twice, or not at all."""
        for _ in range(1 + (self.random.random() < self.doubling)):
            if self.random.random() >= self.loss:
                self.later(1 + self.random.randrange(self.delay_ms), lambda: self._arrive(source, to, act))

    def _arrive(self, source: int, to: int, act: Callable[[Node], None]) -> None:
        node = self.nodes[to]
        if node.up and (source, to) not in self.cut:
            act(node)

    # ---- the driver

    def change_of(self, node: Node) -> raft.VotersChanged:
        """The event with the voters in a node's log."""
        voters, end = self.voters_of(node.log)
        since = [self.voters_of(node.log[: node.state.high_watermark])[0]]
        since += [entry.voters for entry in node.log[node.state.high_watermark : end] if entry.voters is not None]
        is_leaving = node.node_id not in voters and any(node.node_id in before for before in since)
        return raft.VotersChanged(voters, end, is_leaving=is_leaving)

    def voters_of(self, log: Sequence[Entry]) -> tuple[tuple[int, ...], int]:
        """The latest voters in a log, and the end offset of their record."""
        for offset in range(len(log) - 1, -1, -1):
            named = log[offset].voters
            if named is not None:
                return named, offset + 1
        return self.voters, 0

    def heed(self, node: Node) -> None:
        """If the log has new voters, pass them to the Raft function."""
        told, state = self.change_of(node), node.state
        if (told.voters, told.end) != (state.voters, state.voters_end):
            self.step(node, told)

    def step(self, node: Node, event: raft.Event) -> bool | None:
        """Take a step, and execute the effects in order. Returns the response to a Vote, if there is one."""
        before = node.state
        node.state, effects = step(before._replace(tail=node.tail), event, self.now, self.random)
        answer = None
        for effect in effects:
            match effect:
                case raft.Persist(voted):
                    assert voted == node.state.voted or len(effects) > 1
                    if self.persist:
                        node.voted = voted
                case raft.Lead(epoch, granting):
                    self._lead(node, epoch, granting)
                case raft.Commit(end):
                    self._commit(node, end)
                case raft.CaughtUp():
                    node.is_new = node.has_lost = False
                case raft.AnswerVote(granted):
                    answer = granted
                case _:
                    self._ask(node, effect)
        assert node.state.epoch >= before.epoch, "epochs do not go back"
        if self.persist:
            on_disk, goes_by = node.voted, node.state.voted
            forgetful = on_disk._replace(leader_id=raft.NOBODY)
            assert goes_by == on_disk or (goes_by == forgetful and not before.may_stand), "its vote is on disk"
        return answer

    def _lead(self, node: Node, epoch: int, granting: tuple[int, ...]) -> None:
        assert self.leaders.setdefault(epoch, node.node_id) == node.node_id, f"two leaders of epoch {epoch}"
        voters, _ = self.voters_of(node.log)
        assert len(set(granting) & set(voters)) > len(voters) // 2
        assert node.log[: len(self.committed)] == self.committed, "a leader lacks committed records"
        node.log.append(Entry(epoch, -1))

    def _commit(self, node: Node, end: int) -> None:
        assert end <= len(node.log)
        known = min(end, len(self.committed))
        assert node.log[:known] == self.committed[:known], "committed logs agree"
        if end > known:
            assert node.node_id == self.leaders.get(node.log[-1].epoch), "the leader is the first to commit a record"
            voters, _ = self.voters_of(node.log)
            have = sum(
                self.nodes[voter].has_lost
                or (self.nodes[voter].synced >= end and self.nodes[voter].log[:end] == node.log[:end])
                for voter in voters
            )
            assert have > len(voters) // 2, "a committed record is on the disks of a majority"
            self.committed = node.log[:end]
            for other in self.nodes.values():
                changes = sum(entry.voters is not None for entry in other.log[end:])
                held = changes <= 1 or other.log[:end] != self.committed or not self.changes_with_care
                assert held, "one change of voters at a time"

    def _sync(self, node: Node) -> None:
        node.synced = len(node.log)
        self.step(node, raft.Synced(node.synced))

    def _ask(self, node: Node, effect: Any) -> None:
        me, life = node.node_id, node.life

        def back(sender: int, event: raft.Event) -> None:
            """Deliver a response only to the incarnation that sent the request: the connection of an earlier one is
            closed."""

            def act(asker: Node) -> None:
                if asker.life == life:
                    self.step(asker, event)

            self.send(sender, me, act)

        match effect:
            case raft.AskVote(to, epoch, tail, is_pre_vote):

                def vote(voter: Node) -> None:
                    granted = self.step(voter, raft.VoteAsked(me, epoch, tail, is_pre_vote))
                    assert granted is not None
                    state = voter.state
                    told = raft.VoteTold(voter.node_id, state.epoch, state.leader_id, granted, is_pre_vote)
                    back(voter.node_id, told)

                self.send(me, to, vote)
            case raft.AskBegin(to, epoch):

                def begin(voter: Node) -> None:
                    self.step(voter, raft.BeginAsked(me, epoch))
                    back(voter.node_id, raft.LeaderTold(voter.state.epoch, voter.state.leader_id))

                self.send(me, to, begin)
            case raft.AskEnd(to, epoch, successors):

                def end(voter: Node) -> None:
                    self.step(voter, raft.EndAsked(me, epoch, successors))

                self.send(me, to, end)

    # ---- replication

    def _fetch(self, node: Node) -> None:
        """Fetch from the leader. An observer that does not know the leader fetches from any node."""
        if node.synced < len(node.log) or (node.fetch is not None and node.fetch[1] > self.now):
            return
        state = node.state
        to = state.leader_id
        if state.role is not Role.FOLLOWER:
            if state.may_stand:
                return
            to = self.random.choice(sorted(self.nodes))
        self._fetches += 1
        node.fetch = (self._fetches, self.now + FETCH_PATIENCE_MS)
        request, me, life = Fetch(self._fetches, state.epoch, node.tail), node.node_id, node.life

        def serve(leader: Node) -> None:
            reply = self._serve(leader, me, request)

            def take(asker: Node) -> None:
                if asker.life == life:
                    self._take(asker, leader.node_id, reply)

            self.send(leader.node_id, me, take)

        self.send(me, to, serve)

    def _serve(self, node: Node, replica: int, fetch: Fetch) -> FetchReply:
        state = node.state
        if not state.is_leader or fetch.epoch != state.epoch:
            if fetch.epoch > state.epoch:
                self.step(node, raft.LeaderTold(fetch.epoch, raft.NOBODY))
            return FetchReply(fetch.number, node.state.epoch, node.state.leader_id)
        oldest = Tail(node.log[node.start - 1].epoch, node.start) if node.start else None
        outcome = compare(epochs_of(node.log), node.start, len(node.log), oldest, fetch.tail)
        entries: tuple[Entry, ...] = ()
        start = fetch.tail.end
        if isinstance(outcome, Agrees):
            self.step(node, raft.ReplicaFetched(replica, fetch.tail.end))
            entries = tuple(node.log[start : start + BATCH])
        elif isinstance(outcome, NeedsSnapshot):
            start = self.random.randint(max(node.start, 1), max(node.start, 1, node.state.high_watermark))
            entries = tuple(node.log[:start])
        told = node.state.told_high_watermark
        return FetchReply(fetch.number, state.epoch, node.node_id, outcome, entries, start, told)

    def _take(self, node: Node, leader_id: int, reply: FetchReply) -> None:
        if node.fetch is None or node.fetch[0] != reply.number:
            return
        node.fetch = None
        self.step(node, raft.LeaderTold(reply.epoch, reply.leader_id))
        state = node.state
        if reply.outcome is None:
            return
        if state.role is not Role.FOLLOWER or (reply.epoch, leader_id) != (state.epoch, state.leader_id):
            return
        agreed = 0
        match reply.outcome:
            case Diverges():
                end = truncation(epochs_of(node.log), len(node.log), reply.outcome)
                assert end < len(node.log), "each response shortens the follower's log"
                self._truncate(node, end)
            case NeedsSnapshot():
                node.log = list(reply.entries)
                node.synced = node.start = len(node.log)
                assert node.log == self.committed[: len(node.log)]
                self.heed(node)
            case Agrees():
                leader = self.nodes[leader_id]
                if leader.up and leader.state.is_leader and leader.state.epoch == reply.epoch:
                    assert node.log[: reply.start] == leader.log[: reply.start], "equal below the fetch offset"
                node.log += reply.entries
                self.heed(node)
                agreed = reply.high_watermark
                assert agreed < 0 or min(agreed, len(node.log)) >= state.high_watermark, "a high watermark goes back"
        self.step(node, raft.Followed(leader_id, reply.epoch, agreed))

    def _truncate(self, node: Node, end: int) -> None:
        assert end >= node.state.high_watermark, "a follower is told to truncate committed records"
        del node.log[end:]
        node.synced = min(node.synced, end)
        self.heed(node)

    # ---- faults and changes

    def append(self) -> bool:
        """Append a record on every node that is in the role of a leader, even if a later leader exists."""
        leading = [node for node in self.nodes.values() if node.up and node.state.is_leader]
        for node in leading:
            self.values += 1
            node.log.append(Entry(node.state.epoch, self.values))
        return bool(leading)

    def change_voters(self) -> bool:
        """On every node that is in the role of a leader, add a voter that has nearly caught up, or remove a voter."""
        chance, changed = self.random, False
        for node in self.nodes.values():
            state = node.state
            if not (node.up and state.is_leader and (state.may_change_voters or not self.changes_with_care)):
                continue
            number = chance.choice(sorted(self.nodes))
            voters = tuple(sorted({*state.voters} ^ {number}))
            if not voters or (number in voters and len(self.nodes[number].log) + 2 * BATCH < len(node.log)):
                continue
            self.values += 1
            node.log.append(Entry(state.epoch, self.values, voters))
            self.heed(node)
            changed = True
        return changed

    def snapshot(self, node: Node) -> None:
        """Delete the log before some committed offset."""
        if node.up and node.state.high_watermark > node.start:
            node.start = self.random.randint(node.start, node.state.high_watermark)

    def crash(self, node: Node) -> None:
        node.up = False
        keep = self.random.randint(node.synced, len(node.log))
        del node.log[keep:]

    def restart(self, node: Node) -> None:
        node.up, node.fetch, node.life = True, None, node.life + 1
        node.synced = len(node.log)
        told = self.change_of(node)
        node.state = State(
            node.node_id,
            told.voters,
            node.voted,
            timing=self.timing,
            tail=node.tail,
            high_watermark=node.start,
            voters_end=told.end,
            is_leaving=told.is_leaving,
            is_new=node.is_new,
        )
        self.step(node, raft.Start())

    def lose_directory(self, node: Node) -> None:
        """Replace a disk with an empty one, if enough other voters have all records."""
        lost = sum(self.nodes[voter].is_new or self.nodes[voter].has_lost for voter in self.voters)
        if self.committed and not node.is_new and lost < (len(self.voters) - 1) // 2:
            node.up, node.is_new, node.has_lost = False, self.new_voters_wait, True
            node.log.clear()
            node.voted = Voted()
            node.start = node.synced = 0

    def heal(self) -> None:
        self.cut.clear()
        self.loss = self.doubling = 0.0
        self.delay_ms = 5
        for node in self.nodes.values():
            if not node.up:
                self.restart(node)

    @property
    def leader(self) -> Node | None:
        """The leader of the latest epoch."""
        leading = [node for node in self.nodes.values() if node.up and node.state.is_leader]
        return max(leading, key=lambda node: node.state.epoch, default=None)
