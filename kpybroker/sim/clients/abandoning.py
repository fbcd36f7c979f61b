"""A client that stops in the middle of a transaction, a generation and a rebalance, to check their timeouts.

Timeouts must not depend on wall clocks. When the client stops, the clocks of the brokers are set back or forward.
Measured in virtual time, the transaction must be aborted, the member removed and the rebalance ended within the timeout
plus a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from kpybroker.sim.clients.classic_members import REBALANCE_MS, SESSION_MS, ClassicMembership
from kpybroker.sim.clients.client import TRANSACTION, Refused, SimClient, Unanswered
from kpybroker.sim.clients.transacting import TIMEOUTS_MS, TV2, ClientDied, TransactionalSession
from kpybroker.sim.cluster.cluster import SimMachine
from kpybroker.sim.world.history import Sent
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import describe_groups, describe_transactions

TRANSACTIONAL_ID = LEFT = "abandoned"
REBALANCING = "abandoned by half"
PARKED_S = 0.3
"""After this time, the successor's JoinGroup waits at the coordinator."""
JUMPS_MS = (-600_000, -45_000, 45_000)
ATTEMPTS_MAX = 20
BOUND_S = 3.0
"""Time for the coordinator's next check, which follows within a second here, and for the commit of its decision."""
ONGOING = "Ongoing"


class Abandoner:
    """Runs once, on a cluster whose only faults are those of its clocks."""

    def __init__(
        self, client: SimClient, places: list[TopicPartition], machines: Sequence[SimMachine], random: Random
    ) -> None:
        self._client = client
        self._places = places
        self._machines = machines
        self._random = random

    async def run(self) -> bool:
        """Run the client. Returns False after a breach, if the transaction, the membership or the rebalance did not end
        in time."""
        client = self._client
        left, left_early = ClassicMembership(client, LEFT), ClassicMembership(client, REBALANCING)
        for _ in range(ATTEMPTS_MAX):
            try:
                await left_early.share_of(self._places)
                await left.share_of(self._places)
                await self._begin()
                break
            except (Unanswered, Refused, ClientDied) as failed:
                client.note(f"cannot abandon anything yet: {failed}")
                for group in (LEFT, REBALANCING):
                    client.forget_coordinator(group)
                client.forget_topic(self._places[0][0])
                await asyncio.sleep(0.5)
        else:
            client.history.breach(f"no transaction and groups could be started in {ATTEMPTS_MAX} attempts")
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
        session = TransactionalSession(client, TRANSACTIONAL_ID, TV2)
        await session.begin()
        client.history.transactions.append(session.transaction)
        value = b"abandoned/%d" % len(client.history.transactions)
        await session.write(self._places[0], [Sent(value, self._places[0], -1, True)])

    async def _takes_over(self, gone: str, began_s: float) -> bool:
        """Whether the rebalance ends in time, so that a member that joined before the clocks jumped is the only
        member."""
        client, successor = self._client, ClassicMembership(self._client, REBALANCING)
        limit_s = REBALANCE_MS / 1000 + BOUND_S
        while client.loop.time() < began_s + limit_s:
            try:
                if gone not in await successor.join():
                    return True
            except (Unanswered, Refused) as failed:
                client.note(f"waits for {gone} to be removed: {failed}")
                client.forget_coordinator(REBALANCING)
            await asyncio.sleep(0.2)
        client.history.breach(f"a rebalance of {REBALANCING} has not ended after {limit_s:.0f} s")
        return False

    async def _is_out(self, began_s: float) -> bool:
        """Whether the group is empty after the session timeout of its only member."""
        client, request = self._client, describe_groups.Request(groups=[LEFT])
        limit_s = SESSION_MS / 1000 + BOUND_S
        while True:
            at_s = client.loop.time()
            try:
                node_id = await client.coordinator(LEFT)
                response = (await client.ask(node_id, "DescribeGroups", request)).groups[0]
                if response.error_code:
                    raise Refused(response.error_code)
                if not response.members:
                    return True
                if at_s > began_s + limit_s:
                    client.history.breach(f"a member that left {at_s - began_s:.1f} s ago is still a member of {LEFT}")
                    return False
            except (Unanswered, Refused) as failed:
                client.note(f"cannot describe {LEFT}: {failed}")
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
                response = (await client.ask(node_id, "DescribeTransactions", request)).transaction_states[0]
                if response.error_code:
                    raise Refused(response.error_code)
                if response.transaction_state != ONGOING:
                    return True
                if at_s > began_s + limit_s:
                    client.history.breach(f"a transaction that was abandoned {at_s - began_s:.1f} s ago is still open")
                    return False
            except (Unanswered, Refused) as failed:
                client.note(f"cannot describe its transaction: {failed}")
                client.forget_coordinator(TRANSACTIONAL_ID, TRANSACTION)
            await asyncio.sleep(0.5)
