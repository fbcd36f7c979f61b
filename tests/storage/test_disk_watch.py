"""A disk is reported as hanging if an operation does not end, but not if it is only busy."""

from __future__ import annotations

import asyncio

import pytest

from kpybroker.config import LogSettings
from kpybroker.errors import Damage
from kpybroker.storage.dirs.disk_watch import LOOKS_EVERY_S, DiskWatch
from kpybroker.world.devices import Device
from tests.replication.leading import NOW_MS, batch
from tests.storage.two_disks import STALL_S, TwoDisks

TIMEOUT_MS = 3000
IN_LINE = 100


class Told:
    """Records the hangs and recoveries that a DiskWatch of both disks reports, with their times."""

    def __init__(self, world: TwoDisks) -> None:
        self.changes: list[tuple[float, list[str]]] = []
        self._world = world
        self.watch = DiskWatch(world, ("/slow", "/quick"), TIMEOUT_MS, self._note)  # type: ignore[arg-type]

    def _note(self) -> None:
        self.changes.append((self._world.loop.time(), list(self.watch.hung)))


def test_waiting_in_line_is_not_a_sign_of_a_hanging_disk() -> None:
    """While operations end, the total time does not matter. An operation that does not end is detected even if later
    ones end."""
    device = Device("/d")
    assert device.silent_ms(0) == 0
    works = [device.begin(0) for _ in range(IN_LINE)]
    for number, work in enumerate(works):
        assert device.silent_ms(1000 * (number + 1)) == 1000
        device.end(work, 1000 * (number + 1))
    assert device.silent_ms(1_000_000) == 0
    stuck, other = device.begin(1_000_000), device.begin(1_001_000)
    device.end(other, 1_002_000)
    assert device.silent_ms(1_005_000) == 5000
    device.end(stuck, 1_005_000)
    assert device.silent_ms(2_000_000) == 0


def test_a_hang_and_its_end_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    world = TwoDisks()
    world.appended(b"before")
    told = Told(world)
    world.stall()

    async def play() -> None:
        told.watch.start()
        began_s = world.loop.time()
        world.appended(b"first")
        await asyncio.sleep(STALL_S + 1)
        (hung_s, hung), (well_s, well) = told.changes
        assert (hung, well) == (["/slow"], [])
        assert TIMEOUT_MS / 1000 <= hung_s - began_s <= TIMEOUT_MS / 1000 + 3 * LOOKS_EVERY_S
        assert STALL_S <= well_s - began_s <= STALL_S + 2 * LOOKS_EVERY_S
        told.watch.stop()

    world.loop.run_until_complete(play())
    assert [record.levelname for record in caplog.records if "respon" in record.message] == ["CRITICAL", "WARNING"]


def test_a_suspended_process_does_not_report_its_disk() -> None:
    """The write has ended during the suspension, but the timer of the watch may run before the end is processed.
    Therefore one check is not enough."""
    world = TwoDisks()
    told, device = Told(world), world.slow.log.files.device
    for _ in range(2):
        work = device.begin(world.steady_ms())
        world.loop.run_until_complete(asyncio.sleep(10.0))
        told.watch.look()
        assert told.changes == []
        device.end(work, world.steady_ms())
        told.watch.look()
    assert told.changes == []
    device.begin(world.steady_ms())
    world.loop.run_until_complete(asyncio.sleep(10.0))
    told.watch.look()
    told.watch.look()
    assert [hung for _, hung in told.changes] == [["/slow"]]


@pytest.mark.parametrize("is_chore", [False, True])
def test_a_sync_counts_only_if_something_waits_for_it(is_chore: bool) -> None:
    """A full segment is synced in the background, which may take a long time."""
    world = TwoDisks()
    world.appended(b"before")
    world.storage.sync_s = (STALL_S, STALL_S)
    log = world.slow.log

    async def play() -> None:
        syncing = asyncio.ensure_future(log.sync(is_chore=is_chore))
        await asyncio.sleep(STALL_S / 2)
        assert log.files.device.silent_ms(world.steady_ms()) == (0 if is_chore else STALL_S * 500)
        waits = asyncio.ensure_future(log.sync())  # waits for the same sync as the chore
        await asyncio.sleep(STALL_S / 4)
        assert log.files.device.silent_ms(world.steady_ms()) == STALL_S * (250 if is_chore else 750)
        await asyncio.gather(syncing, waits)
        assert log.files.device.silent_ms(world.steady_ms()) == 0

    world.loop.run_until_complete(play())


def test_an_error_counts_as_an_answer() -> None:
    """A write or sync that fails counts as ended, like a successful one. So does a sync whose wait is cancelled."""
    world = TwoDisks(LogSettings())
    world.appended(b"before")

    async def play() -> None:
        world.storage.sync_s = (STALL_S, STALL_S)
        given_up = asyncio.ensure_future(world.slow.log.sync())
        await asyncio.sleep(1.0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        world.storage.error_odds = 1.0
        with pytest.raises(Damage):
            await world.slow.log.sync()
        world.stall()
        world.quick.append(batch(b"first"), NOW_MS)
        world.quick.log.files.device.took(1.0, world.loop.time())
        world.quick.log.flush(wait=False)
        await world.quick.log.until_written()
        assert world.quick.log.offline is not None
        for partition in (world.slow, world.quick):
            assert partition.log.files.device.silent_ms(world.steady_ms() + 1000) == 0

    world.loop.run_until_complete(play())


def test_an_offline_directory_is_not_watched() -> None:
    world, changes, offline = TwoDisks(), list[list[str]](), set[str]()
    watch = DiskWatch(
        world,  # type: ignore[arg-type]
        ("/slow",),
        TIMEOUT_MS,
        lambda: changes.append(list(watch.hung)),
        out=offline,
    )
    world.disk.device("/slow").begin(world.steady_ms() - TIMEOUT_MS)
    watch.look()
    watch.look()
    assert changes == [["/slow"]]
    offline.add("/slow")
    watch.look()
    watch.look()
    assert (changes, watch.hung) == ([["/slow"], []], {})


def test_a_disk_that_hangs_while_a_directory_is_synced_is_noticed() -> None:
    """The segment is synced, but the sync of the directory does not end, so all callers wait for the disk."""
    world = TwoDisks(LogSettings(fsync_always=True))
    told = Told(world)
    log = world.slow.log

    async def play() -> None:
        told.watch.start()
        world.storage.set_pace(0.0, (0.5, 0.5))
        world.appended(b"first")
        await asyncio.sleep(0.2)
        assert log.files.device.silent_ms(world.steady_ms()) == 200, "the segment is being synced"
        world.storage.stall(world.loop.time() + STALL_S, "/slow")
        await asyncio.sleep(10)
        assert log.synced_end == 0
        told.watch.stop()
        await asyncio.sleep(STALL_S)

    world.loop.run_until_complete(play())
    assert [hung for _, hung in told.changes] == [["/slow"]]
