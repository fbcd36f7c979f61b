"""Compares the log ends that nodes report with the batches on their disks. No node may report batches that it has
only in memory.

A leader knows the log end of each follower from the follower's fetches, the leader of the quorum knows that of each
voter, and a broker knows up to which offset it has written its own logs. Each log end is compared with the batches in
the files. These are the batches in the page cache or, with `kpybroker.fsync=always` and for voters, the batches that
survive a power loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import TYPE_CHECKING

from kpybroker.sim.world.storage import File, Folder, Storage
from kpybroker.wire.records.batch import HEADER_BYTES

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.sim.cluster.cluster import SimMachine
    from kpybroker.sim.world.history import History
    from kpybroker.storage.log.log import Log

_BASE_AND_LENGTH = Struct(">qi")
_DELTA = Struct(">i")
_DELTA_AT = 23
_LENGTH_FROM = 12
_SUFFIX, _SWAP = ".log", ".swap"


class Files:
    """Finds the last batch in the files of a log by reading batch headers. The position of that batch is stored, so the
    next call reads only newer batches."""

    def __init__(self) -> None:
        self._seen: dict[File, tuple[int, int, bytes]] = {}
        """For each file, the position of the last batch that was read, its end offset, and its header. A header
        contains the CRC, so a changed batch is noticed."""

    def end(self, storage: Storage, directory: str, *, synced: bool) -> int:
        """The end offset of the last batch in a log's directory; -1 if it has no files.

        `synced`: count only batches that survive a power loss, which may undo any number of the latest renames.
        """
        folder = storage.find(directory)
        if not isinstance(folder, Folder):
            return -1
        names = dict(folder.names)
        end = self._end_in(names, synced=synced)
        for change in reversed(folder.changes) if synced else ():
            for name, before in change:
                if before is None:
                    names.pop(name, None)
                else:
                    names[name] = before
            end = min(end, self._end_in(names, synced=True))
        return end

    def _end_in(self, names: Mapping[str, File | Folder], *, synced: bool) -> int:
        """The end offset of the last batch in these files. Swap files count, because the next start completes their
        swaps."""
        found = sorted(name for name in names if name.removesuffix(_SWAP).endswith(_SUFFIX))
        for name in reversed(found):
            file = names[name]
            assert isinstance(file, File)
            end = self._end_of(file, synced=synced)
            if end >= 0:
                return end
        return int(found[-1].partition(".")[0]) if found else -1

    def _end_of(self, file: File, *, synced: bool) -> int:
        content, limit = file.content, len(file.content)
        if synced:
            limit = min((change.at for change in file.changes), default=limit)
        position, end, header = self._seen.get(file, (0, -1, b""))
        if position + len(header) > limit or content[position : position + len(header)] != header:
            position, end, header = 0, -1, b""
        seen = position
        while position + HEADER_BYTES <= limit:
            base_offset, length = _BASE_AND_LENGTH.unpack_from(content, position)
            beyond = position + _LENGTH_FROM + length
            if length <= 0 or beyond > limit:
                end = min(end, base_offset)
                break
            end = base_offset + _DELTA.unpack_from(content, position + _DELTA_AT)[0] + 1
            seen, header = position, bytes(content[position : position + HEADER_BYTES])
            position = beyond
        self._seen[file] = seen, end, header
        return end


class Claims:
    """Checks all nodes, and stores the log ends that it has already verified."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._files = Files()
        self._own: dict[tuple[str, str], tuple[int, int]] = {}
        self._told: dict[tuple[int, int, bytes, int], tuple[int, int, int]] = {}
        self._voted: dict[tuple[int, int], tuple[int, int]] = {}

    def look(self, machines: list[SimMachine]) -> None:
        """Compare the log ends that have changed since the last call."""
        by_id = {machine.setup.node_id: machine for machine in machines}
        for machine in machines:
            node = machine.node
            if node is None:
                continue
            for partition in node.broker.replication.hosting:
                self._look_at_own(machine, partition.log)
                if partition.leads and partition.followers is not None:
                    self._look_at_followers(machine, partition, by_id)
            self._look_at_voters(machine, node.broker, by_id)

    def _look_at_own(self, machine: SimMachine, log: Log) -> None:
        """The broker's `written_end` must be in its files, and its `synced_end` must survive a power loss."""
        if log.offline is not None:
            return
        key, ends = (machine.name, log.directory), (log.written_end, log.synced_end)
        if self._own.get(key) == ends:
            return
        self._own[key] = ends
        self._compare(machine, log, log.written_end, synced=False, who=f"{machine.name} itself")
        if log.settings.fsync_always:
            self._compare(machine, log, log.synced_end, synced=True, who=f"{machine.name} itself")

    def _look_at_followers(self, machine: SimMachine, partition: Partition, by_id: dict[int, SimMachine]) -> None:
        assert partition.followers is not None
        for node_id, follower in partition.followers.by_id.items():
            node = by_id[node_id].node
            replica = None if node is None else node.broker.replication.hosting.find(partition.topic, partition.index)
            if node is None or replica is None or node.broker.membership.epoch != follower.broker_epoch:
                continue  # the follower has restarted, and its next fetch will report its log end
            if replica.leader_epoch != partition.leader_epoch or replica.topic_id != partition.topic_id:
                continue  # one of the two has a newer epoch, and has truncated its log or is about to
            key = (machine.setup.node_id, node_id, partition.topic_id, partition.index)
            claim = (follower.broker_epoch, partition.leader_epoch, follower.log_end)
            if self._told.get(key) == claim:
                continue
            self._told[key] = claim
            synced = node.broker.config.fsync == "always"  # the topic's setting may have changed since the fetch
            who = f"{machine.name}, by the fetches of node {node_id},"
            self._compare(by_id[node_id], replica.log, follower.log_end, synced=synced, who=who)

    def _look_at_voters(self, machine: SimMachine, broker: Broker, by_id: dict[int, SimMachine]) -> None:
        state = broker.quorum.state
        for voter, end in (state.synced or {}).items():
            node = by_id[voter].node if voter in by_id else None
            key, claim = (machine.setup.node_id, voter), (state.epoch, end)
            if node is None or self._voted.get(key) == claim:
                continue
            self._voted[key] = claim
            log = node.broker.quorum.log
            # a voter in another epoch, or with a lower log end, may have lost its disk or truncated its log
            if node.broker.quorum.epoch == state.epoch and log.end >= end:
                who = f"{machine.name}, which leads the quorum,"
                self._compare(by_id[voter], log, end, synced=True, who=who)

    def _compare(self, machine: SimMachine, log: Log, claim: int, *, synced: bool, who: str) -> None:
        if claim <= max(log.start, log.cleaned_end):
            return  # no batch has to exist
        found = self._files.end(machine.storage, log.directory, synced=synced)
        if found < claim:
            on = "on its disk" if synced else "in its files"
            self._history.breach(
                f"{who} assumes that {machine.name} has {log.topic}-{log.partition} below offset {claim} {on}, but it "
                f"has only the offsets below {found}"
            )
