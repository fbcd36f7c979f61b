"""The cleaner cleans the dirtiest log first, stores its progress, and skips logs that it cannot clean."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kpybroker.config import LogSettings, parse_config
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.compaction.candidates import REPLAYED_BYTES
from kpybroker.storage.dirs import garbage
from kpybroker.storage.dirs.cleaner import RETRY_S, Cleaner
from kpybroker.storage.dirs.log_dir import LogDirectory
from kpybroker.storage.files.checkpoint_files import read_offsets
from kpybroker.storage.log.log import Log
from tests.storage.compacting import COMPACT, VirtualWorld, append, keyed, records_of, table

pytestmark = pytest.mark.slow

CONFIG = parse_config({"log.dirs": "/data"})
CHECKPOINT = "/data/cleaner-offset-checkpoint"
SETTINGS = replace(COMPACT, min_cleanable_dirty_ratio=0.5)


class Chore:
    """A log directory on a simulated disk, and its cleaner."""

    def __init__(self, storage: Storage) -> None:
        storage.folder("/")
        self.world = VirtualWorld(storage)
        self.world.disk.mkdir("/data")
        self.directory = LogDirectory(self.world, "/data", CONFIG)
        self.cleaner = Cleaner(self.world, self.directory, lambda: CONFIG)

    def open(self, topic: str, settings: LogSettings = SETTINGS) -> Log:
        return self.directory.open_log(topic, topic.encode().ljust(16, b"."), 0, settings)

    def fill(self, topic: str, keys: int, segments: int) -> Log:
        one = self.open(topic)
        self.more(one, keys, segments)
        return one

    def more(self, one: Log, keys: int, segments: int) -> None:
        for number in range(segments):
            append(one, keyed((f"k{number % keys}", "v" * 100)))
            one.roll()

    def clean(self) -> bool:
        return self.world.loop.run_until_complete(self.cleaner.clean_dirtiest())

    def checkpoint(self) -> dict[tuple[str, int], int]:
        return read_offsets(self.world.disk, CHECKPOINT)


def test_the_dirtiest_is_first_and_clean_ones_are_skipped() -> None:
    chore = Chore(Storage())
    older = chore.fill("older", 30, 30)
    assert chore.clean()
    chore.more(older, 30, 40)
    dirtier = chore.fill("dirtier", 1, 2)
    assert chore.clean()
    assert chore.checkpoint() == {("older", 0): 30, ("dirtier", 0): 2}, "all of it is dirty"
    assert chore.clean()
    assert chore.checkpoint() == {("older", 0): 70, ("dirtier", 0): 2}
    chore.more(older, 30, 10)
    assert not chore.clean(), "less than half of it is dirty"
    chore.more(dirtier, 1, 9)
    assert chore.clean()
    assert chore.checkpoint()["dirtier", 0] == 11


def test_the_progress_is_known_after_a_restart() -> None:
    storage = Storage()
    chore = Chore(storage)
    chore.fill("t", 1, 5)
    assert chore.clean()
    again = Chore(storage)
    assert again.open("t").cleaned_end == 5
    assert not again.clean()


def test_a_recreated_topic_begins_at_its_start() -> None:
    chore = Chore(Storage())
    one = chore.fill("t", 1, 5)
    assert chore.clean()
    chore.directory.delete_log(one)
    assert chore.fill("t", 1, 1).cleaned_end == 0
    assert chore.clean()
    assert chore.checkpoint() == {("t", 0): 1}


def test_a_log_that_cannot_be_cleaned_does_not_delay_others(caplog: pytest.LogCaptureFixture) -> None:
    chore = Chore(Storage())
    torn, sound = chore.fill("torn", 1, 5), chore.fill("sound", 2, 4)
    file = chore.world.storage.file(torn.segments[1].path + ".log")
    file.content[70] ^= 1
    assert not chore.clean()
    assert "torn-0, 0..5) cannot be cleaned" in caplog.text
    assert "wrong CRC or magic at position 0" in caplog.text
    assert torn.offline is None
    assert chore.clean()
    assert len(records_of(sound)) == 2
    assert not chore.clean(), "not yet"
    file.content[70] ^= 1

    async def wait_and_clean() -> bool:
        import asyncio

        await asyncio.sleep(RETRY_S)
        return await chore.cleaner.clean_dirtiest()

    assert chore.world.loop.run_until_complete(wait_and_clean())
    assert len(records_of(torn)) == 1


def test_replaced_files_are_kept_for_their_delay() -> None:
    chore = Chore(Storage())
    one = chore.open("t", replace(SETTINGS, file_delete_delay_ms=1000))
    chore.more(one, 1, 4)
    before_ms = chore.world.steady_ms()
    assert chore.clean()
    names = chore.world.disk.list("/data/t-0")
    assert sum(name.endswith(".log.deleted") for name in names) == 4
    assert chore.directory.garbage.take(before_ms + 999) == []
    assert len(chore.directory.garbage.take(chore.world.steady_ms() + 1000)) >= 12


def test_after_a_crash_a_recreated_topic_does_not_count_as_clean() -> None:
    storage = Storage()
    chore = Chore(storage)
    one = chore.fill("t", 1, 5)
    assert chore.clean()
    chore.directory.delete_log(one)
    one = chore.directory.open_log("t", b"another topic id", 0, SETTINGS)
    chore.more(one, 1, 7)
    crashed = Chore(storage)
    assert crashed.directory.open_log("t", b"another topic id", 0, SETTINGS).cleaned_end == 0


def test_a_truncation_during_the_checkpoint_is_not_clean_on_disk() -> None:
    """The log is truncated at each point of the write. The checkpoint has one writer, so its last version is the
    newest."""
    for number in range(100):
        storage = Storage()
        chore = Chore(storage)
        one = chore.fill("t", 8, 30)
        assert chore.clean()

        async def cut_meanwhile(chore: Chore = chore, one: Log = one, number: int = number) -> bool:
            saving = asyncio.ensure_future(chore.directory.save_cleaned())
            await asyncio.sleep(number * 0.0002)
            was_done, before = saving.done(), chore.checkpoint()
            one.truncate_to(27)
            assert was_done or chore.checkpoint() == before, "the current writer writes it"
            await saving
            return was_done

        was_done = chore.world.loop.run_until_complete(cut_meanwhile())
        assert chore.checkpoint() == {("t", 0): one.cleaned_end}
        assert 0 < one.cleaned_end <= 27
        if was_done:
            return
    raise AssertionError("the write never ends")


def test_a_topic_may_be_deleted_while_it_is_cleaned(caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1000):
        chore = Chore(Storage())
        one = chore.fill("t", 3, 12)

        async def delete_meanwhile(chore: Chore = chore, one: Log = one, number: int = number) -> bool:
            cleaning = asyncio.ensure_future(chore.cleaner.clean_dirtiest())
            await asyncio.sleep(number * 0.0004)
            was_done = cleaning.done()
            chore.directory.delete_log(one)
            chore.more(chore.directory.open_log("t", b"another topic id", 0, SETTINGS), 1, 3)
            await cleaning
            return was_done

        was_done = chore.world.loop.run_until_complete(delete_meanwhile())
        assert "cannot be cleaned" not in caplog.text
        assert chore.clean(), "the new log can be cleaned at once"
        assert chore.checkpoint() == {("t", 0): 3}
        assert not any("cleaned" in name for name in chore.world.disk.list("/data/t-0"))
        if was_done:
            return
    raise AssertionError("the cleaning never ends")


@pytest.mark.parametrize(
    ("settings", "limit_bytes"),
    [
        (replace(SETTINGS, segment_bytes=100_000), 400_000),
        (replace(SETTINGS, segment_bytes=100 << 20, replayed=True), 2 * REPLAYED_BYTES),
    ],
    ids=["small segments", "a coordinator's log"],
)
def test_a_month_of_commits_leaves_bounded_files(settings: LogSettings, limit_bytes: int) -> None:
    """Forty offsets are committed every six minutes, and the cleaner runs every hour."""
    storage = Storage()
    chore = Chore(storage)
    one, largest, written = chore.open("offsets", settings), 0, 0
    for hour in range(30 * 24):
        for turn in range(10):
            commits = [(f"group {number}", f"{hour}.{turn}" + "m" * 60) for number in range(40)]
            batch = keyed(*commits)
            written += len(batch)
            append(one, batch)
        while chore.clean():
            pass
        chore.directory.collect(one)
        garbage.unlink(chore.world.disk, chore.directory.garbage.take())
        largest = max(largest, storage.used_bytes)
    assert written > 20_000_000
    assert largest < limit_bytes
    one.close()
    again = Chore(storage).open("offsets", settings)
    assert len(again.segments) <= 3
    assert table(records_of(again)) == {f"group {number}".encode(): b"719.9" + b"m" * 60 for number in range(40)}


@pytest.mark.parametrize("keys", [100, 3000, 9000])
def test_a_coordinators_log_is_hardly_larger_than_its_state(keys: int) -> None:
    """At most a third of each log, or REPLAYED_BYTES, is dirty, because the active segment is rolled before it is
    full."""
    chore = Chore(Storage())
    one = chore.open("offsets", replace(SETTINGS, segment_bytes=100 << 20, replayed=True))
    step_bytes = kept_bytes = 0
    for turn in range(3 * keys // 50 + 200):
        batch = keyed(*((f"group {(turn * 50 + number) % keys}", f"{turn}" + "m" * 80) for number in range(50)))
        append(one, batch)
        step_bytes = max(step_bytes, len(batch))
        if turn % 10 == 9:
            while chore.clean():
                kept_bytes = one.size_bytes
            dirty_bytes = one.size_bytes - kept_bytes
            assert dirty_bytes <= max(REPLAYED_BYTES, kept_bytes / 2) + 10 * step_bytes
    assert len(table(records_of(one))) == keys
    assert len(one.segments) <= 4


@pytest.mark.parametrize("rate", ["5e-324", "1e-300", "0.001", "1"])
def test_a_rate_that_nearly_stops_the_cleaner_can_be_raised_again(rate: str) -> None:
    chore, config = Chore(Storage()), [CONFIG]
    one = chore.fill("slow", 1, 3)
    cleaner = Cleaner(chore.world, chore.directory, lambda: config[-1])

    async def play() -> None:
        config.append(CONFIG.with_dynamic({"log.cleaner.io.max.bytes.per.second": rate}, {}))
        cleaning = asyncio.ensure_future(cleaner.clean_dirtiest())
        await asyncio.sleep(100)
        assert not cleaning.done()
        config.append(CONFIG)
        assert await cleaning

    chore.world.loop.run_until_complete(play())
    assert one.cleaned_end == one.segments.active.base_offset


def test_an_endless_pause_can_be_shortened() -> None:
    chore, config = Chore(Storage()), [CONFIG.with_dynamic({"log.cleaner.backoff.ms": str((1 << 63) - 1)}, {})]
    cleaner = Cleaner(chore.world, chore.directory, lambda: config[-1])

    async def play() -> None:
        running = asyncio.ensure_future(cleaner.run())
        await asyncio.sleep(100)
        one = chore.fill("late", 1, 3)
        await asyncio.sleep(100)
        assert one.cleaned_end == 0
        config.append(CONFIG)
        await asyncio.sleep(100)
        assert one.cleaned_end == one.segments.active.base_offset
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    chore.world.loop.run_until_complete(play())
