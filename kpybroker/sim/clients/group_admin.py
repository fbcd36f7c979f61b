"""A client that commits offsets in short-lived groups, describes them, and deletes them or their offsets."""

from __future__ import annotations

from typing import Any

from kpybroker.sim.clients.classic_members import ClassicMembership
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.world.history import Commits
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import delete_groups, describe_groups, list_groups, offset_delete


class GroupAdmin:
    """Runs these operations. `ClassicMembership.fetch` checks for every group in the history that deleted offsets stay
    deleted."""

    def __init__(self, client: SimClient, place: TopicPartition, *, pace_s: float) -> None:
        self._client = client
        self._place = place
        self._pace_s = pace_s
        self._number = 0

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            group = f"passing{self._number}"
            self._number += 1
            membership = ClassicMembership(client, group)
            try:
                await membership.commit(self._place, 1)
                await self._look(group)
                if client.random.random() < 0.5:
                    await self._delete_group(group)
                else:
                    await self._delete_offset(group)
                # from now on, any committed offset of this group is a breach
                client.history.commits[group, self._place] = Commits()
                await membership.fetch(self._place)
                client.succeeded()
                await client.nap(self._pace_s)
            except (Unanswered, Refused) as failed:
                client.note(f"does not know the fate of {group}: {failed}")
                self._doubt(group)
                client.forget_coordinator(group)
                client.forget_topic(self._place[0])
                await client.nap(0.5)

    def _doubt(self, group: str) -> None:
        """Record that a deletion without a response may have happened or may still happen."""
        commits = self._client.history.commits.get((group, self._place))
        if commits is not None:
            commits.doubt()

    async def _look(self, group: str) -> None:
        """Check that the coordinator describes and lists the group as Empty. Raises Unanswered, Refused."""
        client = self._client
        node_id = await client.coordinator(group)
        row = await self._described(group, node_id)
        if row.group_state != "Empty":
            client.history.breach(f"group {group} has a commit and no members, but is {row.group_state}")
        listed = await client.ask(node_id, "ListGroups", list_groups.Request())
        if listed.error_code:
            raise Refused(listed.error_code)
        if group not in [row.group_id for row in listed.groups]:
            await self._described(group, node_id)  # it is still the coordinator
            client.history.breach(f"group {group} was described but is not listed")

    async def _described(self, group: str, node_id: int) -> Any:
        response = await self._client.ask(node_id, "DescribeGroups", describe_groups.Request(groups=[group]))
        if response.groups[0].error_code:
            raise Refused(response.groups[0].error_code)
        return response.groups[0]

    async def _delete_group(self, group: str) -> None:
        node_id = await self._client.coordinator(group)
        response = await self._client.ask(node_id, "DeleteGroups", delete_groups.Request(groups_names=[group]))
        if response.results[0].error_code:
            raise Refused(response.results[0].error_code)

    async def _delete_offset(self, group: str) -> None:
        name, index = self._place
        row = offset_delete.OffsetDeleteRequestPartition(partition_index=index)
        topic = offset_delete.OffsetDeleteRequestTopic(name=name, partitions=[row])
        node_id = await self._client.coordinator(group)
        response = await self._client.ask(
            node_id, "OffsetDelete", offset_delete.Request(group_id=group, topics=[topic])
        )
        code = response.error_code or response.topics[0].partitions[0].error_code
        if code:
            raise Refused(code)
