"""Tests that the stream finds the same visits as a simple loop over the same clicks, and writes each visit once."""

from itertools import groupby, pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kpybroker.spark import Cluster
from oracle.target import Target
from spark_examples import clickstream_sessions
from spark_examples.clickstream_sessions import GAP, Click, feeds

pytestmark = pytest.mark.full


def visits_of(clicks: set[Click]) -> list[tuple[object, ...]]:
    """The visits user by user, in the order of time: a click within the gap continues the visit."""
    visits = []
    for user, of_user in groupby(sorted(clicks, key=lambda click: (click.user, click.at)), lambda click: click.user):
        open_visit: list[Click] = []
        for click in of_user:
            if open_visit and click.at > open_visit[-1].at + GAP:
                visits.append((user, open_visit))
                open_visit = []
            open_visit.append(click)
        visits.append((user, open_visit))
    return [
        (user, visit[0].at, visit[-1].at + GAP, len(visit), sum(click.cents for click in visit))
        for user, visit in visits
    ]


def test_every_visit_is_found_once(
    spark: SparkSession, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = clickstream_sessions.main(Cluster(target.bootstrap), tmp_path)
    sent = list(feeds())
    in_time = [click for feed in sent for click in feed.clicks]
    assert len(set(in_time)) < len(in_time), "none came twice"
    assert any(later.at < earlier.at for earlier, later in pairwise(in_time)), "none came late"
    too_late = sum(len(feed.too_late) for feed in sent)
    assert f"{too_late} clicks came too late" in capsys.readouterr().out
    assert too_late > 0
    expected = [visit for visit in visits_of(set(in_time)) if visit[0] != "nobody"]
    found["start"] = found["start"].dt.tz_localize("UTC")
    found["end"] = found["end"].dt.tz_localize("UTC")
    assert list(found.itertuples(index=False, name=None)) == expected
