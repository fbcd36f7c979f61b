"""What is abandoned ends in its time: clients that stop in the middle of a transaction and of a generation.

The clocks of the brokers are set back just then, or forward. True time counts: a transaction is aborted, a member is
out and a rebalance ends within the time-out and a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from kpybroker.sim.clients.classic_members import REBALANCE_MS, SESSION_MS, Membership
from kpybroker.sim.clients.client import TRANSACTION, Client, Refused, Unanswered
from kpybroker.sim.clients.transacting import SECOND, TIMEOUTS_MS, Ended, Session
from kpybroker.sim.cluster.cluster import SimMachine
from kpybroker.sim.world.history import Place, Sent
from kpybroker.wire.rpc import describe_groups, describe_transactions

TRANSACTIONAL_ID = LEFT = "abandoned"
REBALANCING = "abandoned by half"
PARKED_S = 0.3
"""Then the successor's JoinGroup waits at the coordinator."""
JUMPS_MS = (-600_000, -45_000, 45_000)
ATTEMPTS_MAX = 20
BOUND_S = 3.0
"""For the coordinator's next look (a second at most here), and for the commit of what it decides."""
ONGOING = "Ongoing"


class Abandoner:
    """Plays once, on a cluster where everything works but the clocks."""

    def __init__(self, client: Client, places: list[Place], machines: Sequence[SimMachine], random: Random) -> None:
        self._client = client
        self._places = places
        self._machines = machines
        self._random = random

    async def run(self) -> bool:
        """False, with a breach, where something stays that should have ended."""
        client = self._client
        left, left_early = Membership(client, LEFT), Membership(client, REBALANCING)
        for _ in range(ATTEMPTS_MAX):
            try:
                await left_early.share_of(self._places)
                await left.share_of(self._places)
                await self._begin()
                break
            except (Unanswered, Refused, Ended) as failed:
                client.note(f"cannot abandon anything yet: {failed}")
                for group in (LEFT, REBALANCING):
                    client.forget_coordinator(group)
                client.forget_topic(self._places[0][0])
                await asyncio.sleep(0.5)
        else:
            client.history.breach(f"nothing could be begun in {ATTEMPTS_MAX} attempts")
            return False
        began_s = client.loop.time()
        rebalancing = client.loop.create_task(self._takes_over(left_early.member_id, began_s))
        await asyncio.sleep(PARKED_S)
        for machine in self._machines:
            machine.skew(self._random.choice(JUMPS_MS))
        ended = await asyncio.gather(self._is_out(began_s), self._is_aborted(began_s), rebalancing)
        for machine in self._machines:
            machine.skew(0)
        return all(ended)

    async def _begin(self) -> None:
        client = self._client
        session = Session(client, TRANSACTIONAL_ID, SECOND)
        await session.begin()
        client.history.transactions.append(session.transaction)
        value = b"abandoned/%d" % len(client.history.transactions)
        await session.write(self._places[0], [Sent(value, self._places[0], -1, True)])

    async def _takes_over(self, gone: str, began_s: float) -> bool:
        """A member that joined before the clocks were set has the group to itself: the rebalance has ended."""
        client, successor = self._client, Membership(self._client, REBALANCING)
        limit_s = REBALANCE_MS / 1000 + BOUND_S
        while client.loop.time() < began_s + limit_s:
            try:
                if gone not in await successor.join():
                    return True
            except (Unanswered, Refused) as failed:
                client.note(f"waits for {gone} to be out: {failed}")
                client.forget_coordinator(REBALANCING)
            await asyncio.sleep(0.2)
        client.history.breach(f"a rebalance of {REBALANCING} has not ended after {limit_s:.0f} s")
        return False

    async def _is_out(self, began_s: float) -> bool:
        """The only member of a group has not been heard of: the group is empty."""
        client, request = self._client, describe_groups.Request(groups=[LEFT])
        limit_s = SESSION_MS / 1000 + BOUND_S
        while True:
            at_s = client.loop.time()
            try:
                node_id = await client.coordinator(LEFT)
                told = (await client.ask(node_id, "DescribeGroups", request)).groups[0]
                if told.error_code:
                    raise Refused(told.error_code)
                if not told.members:
                    return True
                if at_s > began_s + limit_s:
                    client.history.breach(f"a member that left {at_s - began_s:.1f} s ago is still in {LEFT}")
                    return False
            except (Unanswered, Refused) as failed:
                client.note(f"does not learn who is in {LEFT}: {failed}")
                client.forget_coordinator(LEFT)
            await asyncio.sleep(0.5)

    async def _is_aborted(self, began_s: float) -> bool:
        client = self._client
        limit_s = max(TIMEOUTS_MS) / 1000 + BOUND_S
        request = describe_transactions.Request(transactional_ids=[TRANSACTIONAL_ID])
        while True:
            at_s = client.loop.time()
            try:
                node_id = await client.coordinator(TRANSACTIONAL_ID, TRANSACTION)
                told = (await client.ask(node_id, "DescribeTransactions", request)).transaction_states[0]
                if told.error_code:
                    raise Refused(told.error_code)
                if told.transaction_state != ONGOING:
                    return True
                if at_s > began_s + limit_s:
                    client.history.breach(f"a transaction that was abandoned {at_s - began_s:.1f} s ago is open")
                    return False
            except (Unanswered, Refused) as failed:
                client.note(f"does not learn of its transaction: {failed}")
                client.forget_coordinator(TRANSACTIONAL_ID, TRANSACTION)
            await asyncio.sleep(0.5)
