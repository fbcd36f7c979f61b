"""The stalls of kpybroker's event loop, from its /metrics. Apache Kafka has no event loop, so it has none."""

from typing import NamedTuple
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from bench.target import Target

WORST = "kpybroker_loop_worst_stall_seconds"
COUNT = "kpybroker_loop_stalls_total"
TIMEOUT_S = 10.0


class Stalls(NamedTuple):
    """The longest stall since the last scrape in seconds, and the number of stalls by cause since the start."""

    worst_s: float
    count: dict[str, int]

    def since(self, earlier: "Stalls") -> "Stalls":
        """The worst one, and the number of stalls after `earlier`; only causes that occurred."""
        later = {cause: count - earlier.count.get(cause, 0) for cause, count in self.count.items()}
        return Stalls(self.worst_s, {cause: count for cause, count in later.items() if count})

    def worse(self, other: "Stalls") -> "Stalls":
        """Both together: the longer one, and the sums."""
        causes = dict.fromkeys((*self.count, *other.count))
        count = {cause: self.count.get(cause, 0) + other.count.get(cause, 0) for cause in causes}
        return Stalls(max(self.worst_s, other.worst_s), count)

    def __str__(self) -> str:
        """For example "34 ms (2 Produce, 1 flush)"."""
        causes = ", ".join(f"{count} {cause}" for cause, count in sorted(self.count.items(), key=lambda each: -each[1]))
        return f"{self.worst_s * 1e3:.0f} ms" + (f" ({causes})" if causes else "")


def scrape(target: Target) -> Stalls | None:
    """None if the target serves no metrics of kpybroker."""
    if not target.http:
        return None
    with urlopen(f"http://{target.http}/metrics", timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    worst_s, count = 0.0, {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == WORST:
                worst_s = sample.value
            elif sample.name == COUNT:
                count[sample.labels["cause"]] = int(sample.value)
    return Stalls(worst_s, count)
