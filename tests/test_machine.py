"""Tests the invariants of the Runner: responses are sent only after their commit, in order, and every caller finally
receives a response."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import Damage, ErrorCode, KafkaError
from tests.words import ManualLog, run, runner_of, turn


def test_an_answer_that_is_available_at_once_does_not_suspend() -> None:
    async def play() -> None:
        runner, _ = runner_of(ManualLog(at_once=True))
        await runner.load()
        asked = runner.ask("hello", 1000)
        with pytest.raises(StopIteration) as done:
            asked.send(None)
        assert done.value.value == "hello"
        assert runner.waiters == 0

    run(play)


def test_refused_and_reading_commands_wait_for_the_records_that_they_could_have_read() -> None:
    async def play() -> None:
        log = ManualLog()
        runner, _ = runner_of(log)
        await runner.load()
        write = asyncio.create_task(runner.ask("a", 1000))
        await turn()
        read = asyncio.create_task(runner.ask("?", 1000))
        refused = asyncio.create_task(runner.ask("no", 1000))
        await turn()
        assert not write.done()
        assert not read.done()
        assert not refused.done()
        log.commit(1)
        assert await write == "a"
        assert await read == ["a"]
        with pytest.raises(KafkaError, match="INVALID_REQUEST"):
            await refused

    run(play)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_answers_leave_in_order_and_never_before_their_commit(data: st.DataObject) -> None:
    async def play() -> None:
        log = ManualLog()
        runner, words = runner_of(log)
        await runner.load()
        left: list[int] = []
        tasks = []

        async def ask(number: int, command: str) -> None:
            end = log.end
            try:
                await runner.ask(command, 0)
            except KafkaError:
                pass
            else:
                end += command not in ("?", "no")
            assert log.committed >= end
            left.append(number)

        for number in range(data.draw(st.integers(1, 12))):
            if data.draw(st.booleans()):
                tasks.append(asyncio.create_task(ask(number, data.draw(st.sampled_from(["w", "?", "no"])))))
            else:
                log.commit(data.draw(st.integers(log.committed, log.end)))
            await turn()
        log.commit(log.end)
        await asyncio.gather(*tasks)
        assert left == sorted(left)
        replayed, same = runner_of(log)
        await replayed.load()
        assert same.words == words.words

    run(play)


def test_a_ticket_may_be_answered_by_a_later_command() -> None:
    async def play() -> None:
        log = ManualLog()
        runner, words = runner_of(log)
        await runner.load()
        parked = asyncio.create_task(runner.ask("park", 1))
        await asyncio.sleep(60)  # a command that waits is not late
        assert words.parked[0].open
        word = asyncio.create_task(runner.ask("now", 1000))
        await turn()
        assert not parked.done()
        log.commit(1)
        assert await parked == "now"
        assert await word == "now"

    run(play)


def test_late_commits_are_refused_and_the_state_stays() -> None:
    async def play() -> None:
        log = ManualLog()
        runner, words = runner_of(log, late_code=ErrorCode.REQUEST_TIMED_OUT)
        await runner.load()
        with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT"):
            await runner.ask("a", 250)
        assert asyncio.get_running_loop().time() == pytest.approx(0.25)
        assert words.words == [(0, "a")]
        log.commit(1)
        assert await runner.ask("?", 250) == ["a"]

    run(play)


def test_a_caller_that_gave_up_is_known_as_gone() -> None:
    async def play() -> None:
        runner, words = runner_of(ManualLog(at_once=True))
        await runner.load()
        parked = asyncio.create_task(runner.ask("park", 1000))
        await turn()
        parked.cancel()
        await turn()
        assert not words.parked[0].open
        assert await runner.ask("word", 1000) == "word"
        assert runner.waiters == 0

    run(play)


def test_stop_refuses_everybody() -> None:
    async def play() -> None:
        log = ManualLog()
        runner, _ = runner_of(log)
        await runner.load()
        asked = [asyncio.create_task(runner.ask(command, 1000)) for command in ("park", "a", "?", "b")]
        await turn()
        runner.stop(KafkaError(ErrorCode.NOT_COORDINATOR))
        for task in asked:
            with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
                await task
        with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
            await runner.ask("?", 1000)
        log.commit(2)
        runner.tell("nobody hears this")
        assert log.end == 2

    run(play)


def test_commands_before_the_load_are_refused() -> None:
    async def play() -> None:
        runner, words = runner_of(ManualLog([b"a", b"b"]), loading_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        with pytest.raises(KafkaError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await runner.ask("?", 1000)
        await runner.load()
        assert await runner.ask("?", 1000) == ["a", "b"]
        assert words.words == [(0, "a"), (1, "b")]
        assert words.ticks == [0]

    run(play)


def test_a_machine_is_woken_at_its_deadline_and_not_before() -> None:
    async def play() -> None:
        runner, words = runner_of(ManualLog())
        await runner.load()
        await runner.ask("at 5000", 1000)
        await runner.ask("at 2000", 1000)
        await runner.ask("at 3000", 1000)
        await asyncio.sleep(10)
        assert words.ticks == [0, 3000]
        await runner.ask("at 11000", 1000)
        runner.stop(KafkaError(ErrorCode.NOT_COORDINATOR))
        await asyncio.sleep(10)
        assert words.ticks == [0, 3000]

    run(play)


@pytest.mark.parametrize("ahead_ms", [-600_000, 600_000])
def test_setting_the_wall_clock_moves_no_deadline(ahead_ms: int) -> None:
    async def play() -> None:
        runner, words = runner_of(ManualLog())
        await runner.load()
        await runner.ask("at 3000", 1000)
        runner.world.ahead_ms = ahead_ms  # type: ignore[attr-defined]
        await asyncio.sleep(2.9)
        assert words.ticks == [0]
        await asyncio.sleep(0.2)
        assert words.ticks == [0, 3000]

    run(play)


def test_records_that_the_log_refuses_are_not_applied() -> None:
    async def play() -> None:
        log = ManualLog(at_once=True)
        runner, words = runner_of(log)
        await runner.load()
        parked = asyncio.create_task(runner.ask("park", 1000))
        await turn()
        log.refusal = KafkaError(ErrorCode.NOT_COORDINATOR, "led elsewhere")
        for waiting in (asyncio.create_task(runner.ask("a", 1000)), parked):
            with pytest.raises(KafkaError, match="led elsewhere"):
                await waiting
        assert words.words == []
        log.refusal = None
        assert await runner.ask("b", 1000) == "b"

    run(play)


def test_a_damaged_log_stops_the_machine() -> None:
    async def play() -> None:
        log = ManualLog()
        runner, _ = runner_of(log)
        await runner.load()
        waiting = asyncio.create_task(runner.ask("park", 1000))
        await turn()
        log.refusal = Damage("the disk is gone")
        for asked in (runner.ask("a", 1000), waiting, runner.ask("?", 1000)):
            with pytest.raises(KafkaError, match="the disk is gone"):
                await asked

    run(play)


def test_a_bug_in_a_decision_affects_only_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        runner, words = runner_of(ManualLog(at_once=True))
        await runner.load()
        waiting = asyncio.create_task(runner.ask("park", 1000))
        await turn()
        with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
            await runner.ask("bug", 1000)
        assert "bug while deciding on str; the command is refused" in caplog.text
        assert await runner.ask("a", 1000) == "a"
        assert await waiting == "a"
        assert words.words == [(0, "a")]

    run(play)


def test_answering_a_ticket_kept_by_a_failed_decision_has_no_effect() -> None:
    async def play() -> None:
        runner, words = runner_of(ManualLog(at_once=True))
        await runner.load()
        with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
            await runner.ask("park and bug", 1000)
        assert not words.parked[0].open
        assert await runner.ask("now", 1000) == "now"
        assert runner.waiters == 0

    run(play)


@pytest.mark.parametrize(("command", "error"), [("bug", AssertionError), ("poison", ValueError)])
def test_a_bug_in_a_step_without_a_caller_stops_the_machine_and_is_reported(
    command: str, error: type[BaseException]
) -> None:
    """Either there is no caller, or the records are written but cannot be applied."""

    async def play() -> None:
        told: list[BaseException] = []
        runner, _ = runner_of(ManualLog(), on_bug=told.append)
        await runner.load()
        waiting = asyncio.create_task(runner.ask("park", 1000))
        await turn()
        with pytest.raises(error):
            runner.tell(command)
        assert [type(bug) for bug in told] == [error]
        with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
            await waiting
        assert not runner.ready

    run(play)


def test_a_bug_in_the_replay_is_reported_too() -> None:
    async def play() -> None:
        told: list[BaseException] = []
        runner, _ = runner_of(ManualLog([b"poison"]), on_bug=told.append)
        with pytest.raises(ValueError, match="cannot be applied"):
            await runner.load()
        assert len(told) == 1
        assert not runner.ready

    run(play)


def test_the_number_of_waiters_is_limited() -> None:
    async def play() -> None:
        log = ManualLog()
        runner, words = runner_of(log, waiters_limit=2)
        await runner.load()
        waiting = [asyncio.create_task(runner.ask("park", 1000)) for _ in range(2)]
        await turn()
        with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
            await runner.ask("a", 1000)
        assert words.words == []
        runner.tell("now")
        log.commit(1)
        assert [await task for task in waiting] == ["now", "now"]
        assert await runner.ask("?", 1000) == ["now"]

    run(play)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "?", "no", "park"]), max_size=12), st.lists(st.integers(0, 12), max_size=6))
def test_submit_is_like_ask(commands: list[str], commits: list[int]) -> None:
    """The responses are the same, in the same order, whether a coroutine or a callback waits for them."""

    async def play(*, submits: bool) -> list[tuple[int, Any]]:
        log = ManualLog()
        runner, _ = runner_of(log)
        await runner.load()
        answers: list[tuple[int, Any]] = []

        def note(number: int, answer: Any) -> None:
            answers.append((number, answer.code if isinstance(answer, KafkaError) else answer))

        async def ask(number: int, command: str) -> None:
            try:
                note(number, await runner.ask(command, 1000))
            except KafkaError as refusal:
                note(number, refusal)

        tasks = []
        for number, command in enumerate(commands):
            if submits:
                runner.submit(command, 1000, partial(note, number))
            else:
                tasks.append(asyncio.create_task(ask(number, command)))
            await turn()
            for end in commits[number : number + 1]:
                log.commit(max(log.committed, min(end, log.end)))
                await turn()
        runner.stop(KafkaError(ErrorCode.NOT_COORDINATOR))
        await turn()
        assert runner.waiters == 0
        assert sorted(number for number, _ in answers) == list(range(len(commands)))
        return answers

    async def both() -> None:
        assert await play(submits=True) == await play(submits=False)

    run(both)


def test_an_abandoned_callback_is_not_called() -> None:
    async def play() -> None:
        log = ManualLog()
        runner, machine = runner_of(log)
        await runner.load()
        told: list[Any] = []
        ticket = runner.submit("park", 1000, told.append)
        assert ticket is not None
        assert runner.waiters == 1
        runner.abandon(ticket)
        assert runner.waiters == 0
        assert not machine.parked[0].open
        late = runner.submit("word", 1000, told.append)
        assert late is not None
        log.commit(log.end)  # the response is ready when the caller gives up
        runner.abandon(late)
        await turn()
        assert told == []

    run(play)
