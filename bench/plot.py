"""`python -m bench.plot`: draws every row of the history over the commits, as an SVG picture."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import matplotlib as mpl
import typer
from rich.console import Console

from bench import history
from bench.history import Figure, Line
from bench.measure import Better, Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = history.HISTORY.with_name("history.svg")
COLUMNS = 4
COLOURS = {"kpybroker": "#2f6fb3", "kafka": "#c8782b"}
RUNS_MAX = 60
"""More runs than this are not legible, so only the last ones are drawn."""

console = Console()


def of_one_machine(lines: list[Line]) -> list[Line]:
    """The runs on the same machine, with the same Python and build, as the last run; at most RUNS_MAX."""
    return [each for each in lines if each.machine == lines[-1].machine][-RUNS_MAX:]


def rows(lines: list[Line]) -> list[tuple[str, str]]:
    """The load and the key of every figure of these runs, grouped by load, in the order of the last run."""
    found: dict[str, dict[str, None]] = {}
    for line in reversed(lines):
        for load, measured in line.loads.items():
            found.setdefault(load, {}).update(dict.fromkeys(measured.figures))
    return [(load, key) for load, keys in found.items() for key in keys]


def series(lines: list[Line], load: str, key: str, target: str) -> list[tuple[int, Figure, bool]]:
    """The number of the run, the figure, and whether it was noisy, for each run that has this figure."""
    found = []
    for number, line in enumerate(lines):
        measured = line.loads.get(load)
        figure = None if measured is None else measured.figures.get(key, {}).get(target)
        if measured is not None and figure is not None:
            found.append((number, figure, measured.noisy))
    return found


def names(lines: list[Line]) -> list[str]:
    """The commit of each run; several runs of one commit are numbered."""
    seen: Counter[str] = Counter()
    found = []
    for line in lines:
        seen[line.commit] += 1
        found.append(line.commit if seen[line.commit] == 1 else f"{line.commit} ({seen[line.commit]})")
    return found


def draw(lines: list[Line], measures: dict[str, tuple[str, Measure]], path: Path) -> None:
    """Draw a panel for each row. `measures`: the title and the Measure by key."""
    from matplotlib import pyplot

    mpl.use("Agg")
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    mpl.rcParams["svg.hashsalt"] = "bench"  # the same history gives the same file
    wanted = rows(lines)
    height = -(-len(wanted) // COLUMNS)
    figure, grid = pyplot.subplots(height, COLUMNS, figsize=(5 * COLUMNS, 2.6 * height + 1), squeeze=False)
    panels = list(grid.flat)
    for panel in panels[len(wanted) :]:
        panel.axis("off")
    for panel, (load, key) in zip(panels, wanted, strict=False):
        _panel(panel, lines, load, key)
        title, measure = measures.get(key, (key, None))
        panel.set_title(title, fontsize=8)
        if measure is not None:
            better = "more" if measure.better is Better.HIGHER else "less"
            panel.set_ylabel(f"{measure.unit} ({better} is better)", fontsize=7)
        panel.set_xticks(range(len(lines)), names(lines), rotation=60, fontsize=6)
    panels[0].legend(fontsize=7)
    machine = lines[-1].machine
    figure.suptitle(
        f"{', '.join(f'{value}' for value in machine.values())}\nmedians and ranges; hollow: noisy; "
        "dashed: the user part of kpybroker's CPU",
        fontsize=9,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _panel(panel: Axes, lines: list[Line], load: str, key: str) -> None:
    for target, colour in COLOURS.items():
        points = series(lines, load, key, target)
        if not points:
            continue
        at = [number for number, _, _ in points]
        medians = [figure.median for _, figure, _ in points]
        below = [figure.median - figure.low for _, figure, _ in points]
        above = [figure.high - figure.median for _, figure, _ in points]
        panel.errorbar(at, medians, (below, above), color=colour, linewidth=1, elinewidth=0.6, label=target)
        fill = ["white" if is_noisy else colour for *_, is_noisy in points]
        panel.scatter(at, medians, s=16, c=fill, edgecolors=colour, zorder=3)
        users = [(number, figure.user) for number, figure, _ in points if figure.user is not None]
        if users and target == "kpybroker":
            panel.plot(*zip(*users, strict=True), color=colour, linewidth=0.8, linestyle="--")
    panel.set_ylim(bottom=0)
    panel.set_xlim(-0.5, len(lines) - 0.5)
    panel.tick_params(labelsize=6)
    panel.grid(linewidth=0.3)


def known_measures() -> dict[str, tuple[str, Measure]]:
    """The titles and Measures of all loads of the benchmark."""
    from bench.__main__ import FAMILIES

    found = {}
    for case in (case for family in FAMILIES for case in family.cases()):
        label = case.measures[0].label
        for measure in case.measures:
            own = measure.label.replace("…", f"{label}:", 1) if measure.label != label else label
            found[measure.key] = own, measure
    return found


def main(
    path: Annotated[Path, typer.Option(help="The history.")] = history.HISTORY,
    to: Annotated[Path, typer.Option(help="The picture: .svg, .png or .pdf.")] = PICTURE,
) -> None:
    """Draw the history of the last run's machine."""
    try:
        lines = history.read(path)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{error}; `make bench-quick` writes it", param_hint="--path") from error
    if not lines:
        raise typer.BadParameter(f"{path} is empty; `make bench-quick` writes it", param_hint="--path")
    same = of_one_machine(lines)
    draw(same, known_measures(), to)
    console.print(f"{to}: {len(rows(same))} rows over {len(same)} runs; {len(lines) - len(same)} runs are not drawn")


if __name__ == "__main__":
    typer.run(main)
