"""The benchmark decides by the noise, keeps a history without loss, and draws all of it."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from bench import history, plot
from bench.__main__ import FAMILIES
from bench.history import Figure, Line, Load
from bench.measure import Better, Measure, Result, Row
from bench.mixed_cluster import ALONE, BY_KAFKA, BY_KPYBROKER, FAILURES, NODES, Loads, silence_table
from bench.noise import KERNEL_THREAD, OTHERS_MAX, STOLEN_MAX, CpuTime, Noise, Slice, cpu_time, quietest
from bench.report import of_load
from bench.stalls import Stalls
from bench.target import ClusterTarget, Cost, Cpu, Target

HZ = os.sysconf("SC_CLK_TCK")
shares = st.floats(0, 1)
noises = st.builds(Noise, shares, shares)
seconds = st.floats(0, 1e5)
positive = st.floats(0.001, 1e6)
words = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)
figures = st.builds(Figure, positive, positive, positive, st.none() | positive)
loads = st.builds(
    Load,
    st.dictionaries(words, st.dictionaries(st.sampled_from(["kpybroker", "kafka"]), figures), max_size=2),
    shares,
    shares,
    st.booleans(),
    st.none() | positive,
)
lines = st.builds(
    Line,
    words,
    words,
    st.dictionaries(words, words, max_size=2),
    st.booleans(),
    st.dictionaries(words, loads, max_size=2),
)


# ---- a mixed cluster


def text_of(table: Table) -> str:
    console = Console(width=300)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_the_ratios_of_a_mixed_cluster_are_to_apache_kafka_alone() -> None:
    loads = Loads(2, Console())
    for name, factor in (ALONE, 1.0), (BY_KPYBROKER, 3.0), (BY_KAFKA, 0.5):
        loads.figures[name] = {m.key: [factor, factor * 2] for case in loads.cases for m in case.measures}
    loads.noise = {case.name: Noise(0.25, 0.0) for case in loads.cases}
    lines = [line for line in text_of(loads.table()).splitlines() if "25%" in line]
    assert len(lines) == sum(len(case.measures) for case in loads.cases)
    for line in lines:
        assert [cell.strip() for cell in line.split("│")[3:9]] == [
            "1.50 [1.00-2.00]",
            "4.50 [3.00-6.00]",
            "3.00",
            "0.75 [0.50-1.00]",
            "0.50",
            "25%",
        ]


def test_each_failure_has_its_kinds_of_nodes_and_both_kinds_unless_alone() -> None:
    assert len({(failure.victim, failure.controller) for failure in FAILURES if not failure.is_alone}) == 4
    for failure in FAILURES:
        kinds = ["kpybroker" if node in failure.kpybroker else "kafka" for node in NODES]
        assert kinds[:2] == [failure.victim, failure.controller]
        assert len(set(kinds)) == 1 + (not failure.is_alone)


def test_a_silence_above_the_goal_is_short_only_where_kpybroker_controls() -> None:
    for longest_s, verdict in (1.5, "reached"), (1.51, "SHORT"):
        found = {
            each: {"new": [9.0], "whole": [9.0], "librdkafka": [0.1, 0.2], "java": [longest_s]} for each in FAILURES
        }
        lines = {line.split("│")[1].strip(): line for line in text_of(silence_table(found)).splitlines() if "│" in line}
        for failure in FAILURES:
            assert (verdict in lines[failure.label]) == (failure.controller == "kpybroker")


# ---- noise


@given(st.lists(noises, min_size=1, max_size=5))
@settings(deadline=None)
def test_a_noisy_slice_is_repeated_until_one_is_quiet(given_noises: list[Noise]) -> None:
    taken: list[Noise] = []

    def take() -> Slice[int]:
        taken.append(given_noises[len(taken)])
        return Slice(len(taken), taken[-1])

    kept = quietest(take, len(given_noises) - 1)
    assert not any(noise.is_quiet for noise in taken[:-1])
    assert taken[-1].is_quiet or taken == given_noises
    assert kept.noise == taken[kept.figures - 1]
    assert kept.noise.excess == min(noise.excess for noise in taken)


@given(noises)
@settings(deadline=None)
def test_a_slice_is_quiet_up_to_both_bounds(noise: Noise) -> None:
    assert noise.is_quiet == (noise.others <= OTHERS_MAX and noise.stolen <= STOLEN_MAX)
    assert noise.is_quiet == (noise.excess <= 1)


@given(seconds, seconds, seconds, seconds, seconds)
@settings(deadline=None)
def test_the_rest_of_the_cpu_is_that_of_others(
    others_s: float, ours_s: float, kernel_s: float, idle_s: float, stolen_s: float
) -> None:
    before = CpuTime(1000, 700, 10, 300, 50)
    busy_s = others_s + ours_s + kernel_s
    passed_s = busy_s + idle_s + stolen_s
    after = CpuTime(1000 + passed_s, 700 + busy_s, 10 + stolen_s, 300 + ours_s, 50 + kernel_s)
    noise = after.noise_since(before)
    if after.passed_s == before.passed_s:
        assert noise == Noise(0, 0)
        return
    assert noise.others * passed_s == pytest.approx(others_s, abs=1e-6)
    assert noise.stolen * passed_s == pytest.approx(stolen_s, abs=1e-6)


def test_the_cpu_of_descendants_is_our_own(tmp_path: Path) -> None:
    """Also of those that have ended and were waited for. Kernel threads are neither ours nor others."""
    (tmp_path / "stat").write_text("cpu  1000 200 300 4000 50 6 7 80 0 0\ncpu0 1 1 1\n")
    me = os.getpid()

    def process(pid: int, parent: int, flags: int, *ticks: int) -> None:
        (tmp_path / str(pid)).mkdir()
        fields = [parent, 0, 0, 0, 0, flags, 0, 0, 0, 0, *ticks]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) S {' '.join(map(str, fields))} 20 0\n")

    process(me, 1, 0, 1, 2, 4, 8)
    process(me + 2, me, 0, 16, 32, 0, 0)
    process(me + 1, me + 2, 0, 64, 0, 0, 128)
    process(1, 0, 0, 1000, 1000, 1000, 1000)
    process(2, 0, KERNEL_THREAD, 256, 512, 0, 0)
    (tmp_path / "3").mkdir()  # has just ended
    found = cpu_time(tmp_path)
    assert found.own_s * HZ == pytest.approx(1 + 2 + 4 + 8 + 16 + 32 + 64 + 128)
    assert found.kernel_s * HZ == pytest.approx(256 + 512)
    assert found.busy_s * HZ == pytest.approx(1000 + 200 + 300 + 6 + 7)
    assert found.passed_s * HZ == pytest.approx(1000 + 200 + 300 + 4000 + 50 + 6 + 7 + 80)
    assert found.stolen_s * HZ == pytest.approx(80)


# ---- figures


@given(seconds, st.integers(0, 10_000), st.integers(0, 10_000), positive)
@settings(deadline=None)
def test_user_and_system_time_add_up_to_the_exact_sum(total_s: float, user: int, system: int, count: float) -> None:
    cost = Cpu(total_s, user, system).per(count)
    assert cost == pytest.approx(total_s / count)
    assert cost.user + cost.system == cost
    if user + system:
        assert cost.user == pytest.approx(total_s * user / (user + system) / count)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=7))
@settings(deadline=None)
def test_the_ratio_of_the_medians_is_between_the_ratios_of_the_runs(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = map(list, zip(*pairs, strict=True))
    result = Result(Measure("a", "a", "s", Better.LOWER), {"kpybroker": ours, "kafka": theirs})
    found = result.ratios
    assert found is not None
    assert result.ratio is not None
    assert found.low * 0.999 <= result.ratio <= found.high * 1.001


def row(noise: Noise = Noise(0.01, 0.0)) -> Row:
    rate = Result(Measure("x.rate", "small", "k/s", Better.HIGHER), {"kpybroker": [2.0], "kafka": [1.0]})
    costs = {"kpybroker": [Cost(3.0, 1.0)], "kafka": [Cost(4.0, 4.0)]}
    cost = Result(Measure("x.cpu", "… broker CPU", "µs/request", Better.LOWER), costs)
    return Row("x", [rate, cost], [Noise(0.0, 0.001), noise], Stalls(0.034, {"Produce": 2}))


def test_a_load_shows_its_cpu_first_with_its_noise_and_its_worst_stall() -> None:
    disturbed = ("1%", "0.1%", "34 ms (2 Produce)")
    assert of_load(row()) == [
        ("small: broker CPU", "µs/request", "4.00 = 3.00 + 1.00", "8.00 = 4.00 + 4.00", "0.50", *disturbed),
        ("… rate", "k/s", "2.00", "1.00", "2.00", "", "", ""),
    ]
    assert of_load(row(Noise(0.5, 0.0)))[0][5] == "50% noisy"


def test_a_quick_run_has_the_loads_that_matter_most() -> None:
    quick = {case.name for family in FAMILIES for case in family.cases() if case.is_quick}
    assert quick == {
        "start",
        *(f"produce-small-{depth}" for depth in (1, 10, 100)),
        "produce-16kb",
        *(f"fetch-{size}" for size in ("1kb", "64kb", "1mb")),
        "librdkafka-produce-100-none",
        "librdkafka-consume",
        "librdkafka-end-to-end",
    }


# ---- history


@given(st.lists(lines, min_size=1, max_size=2))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_history_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, given_lines: list[Line]) -> None:
    path = tmp_path_factory.mktemp("history") / "results" / "history.jsonl"
    for line in given_lines:
        assert "\n" not in line.text()
        history.append(line, path)
    assert history.read(path) == given_lines


def test_a_line_has_every_figure_of_a_run() -> None:
    around = dict.fromkeys((*history.MACHINE, "commit", "date"), "x")
    line = history.line([row(Noise(0.5, 0.0))], around, is_quick=True)
    assert line.loads["x"] == Load(
        {
            "x.rate": {"kpybroker": Figure(2, 2, 2), "kafka": Figure(1, 1, 1)},
            "x.cpu": {"kpybroker": Figure(4, 4, 4, 3), "kafka": Figure(8, 8, 8, 4)},
        },
        others=0.5,
        stolen=0.001,
        noisy=True,
        stall_ms=34,
    )


def test_an_invalid_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for text in ("{}", "[]", "1", '{"loads": {"a": {}}}', "{"):
        path.write_text(f"{Line('a', 'b', {}).text()}\n{text}\n")
        with pytest.raises(ValueError, match=r"line 2 .* remove it"):
            history.read(path)


# ---- picture


def made(commit: str, keys: list[str], machine: str = "this") -> Line:
    figure = Figure(2.0, 1.0, 3.0, 1.5)
    found = {key: {"kpybroker": figure, "kafka": figure} for key in keys}
    return Line(commit, "today", {"processor": machine}, True, {"load": Load(found)})


def test_the_picture_has_every_row_and_every_commit(tmp_path: Path) -> None:
    """Also rows that only an earlier run has. Runs on other machines, or with another Python, are not drawn."""
    known = plot.known_measures()
    keys = list(known)[:9]
    runs = [
        made("aaaa1111", keys),
        made("bbbb2222", keys, "that"),
        made("cccc3333", [*keys[:4], "removed"]),
        made("cccc3333", keys[:4]),
    ]
    path = tmp_path / "history.svg"
    plot.draw(plot.of_one_machine(runs), known, path)
    root = ElementTree.parse(path).getroot()
    texts = {"".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {known[key][0] for key in keys} | {"removed"} <= texts
    assert {"aaaa1111", "cccc3333", "cccc3333 (2)"} <= texts
    assert "bbbb2222" not in texts


def test_the_picture_has_a_limit_of_runs(tmp_path: Path) -> None:
    runs = [made(f"{number:08x}", ["a"]) for number in range(plot.RUNS_MAX + 5)]
    assert plot.of_one_machine(runs) == runs[5:]


def test_where_the_replicas_of_a_new_topic_are() -> None:
    assert Target("kafka", "", 0).placed(2) == {"replication_factor": 1}
    assert ClusterTarget("kafka", "", 0, replicas=3).placed(2) == {"replication_factor": 3}
    assert ClusterTarget("kafka", "", 0, replicas=3, brokers=(2, 1)).placed(2) == {"replica_assignment": [[2, 1]] * 2}
