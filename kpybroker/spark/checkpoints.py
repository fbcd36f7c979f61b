"""Ties a checkpoint to its topics, because Spark stores only names and offsets, and would continue with any topic."""

import json
import os
from pathlib import Path

from kpybroker.client.client import Client
from kpybroker.errors import ConfigError
from kpybroker.spark.cluster import Cluster

MARK = "kpybroker.json"


def checkpoint(folder: Path, cluster: Cluster | str, *topics: str) -> str:
    """A local `checkpointLocation` for a query that reads these topics. `cluster`: a Cluster, or an address.

    The first use stores the topics' ids in it (KIP-516). A topic with the same name in another cluster has a different
    id. Raises ConfigError if a topic does not exist, or if it is not the topic for which the checkpoint was created.
    """
    ids = _topic_ids(Cluster.of(cluster), topics)
    mark = folder / MARK
    noted = _noted(mark)
    others = sorted(name for name in ids if noted.get(name, ids[name]) != ids[name])
    if others:
        raise ConfigError(
            f"the checkpoint {folder} was created for another topic {', '.join(others)}, of another cluster or deleted "
            "since: name another folder, or delete this one to start again"
        )
    if noted and ids.keys().isdisjoint(noted):
        raise ConfigError(
            f"the checkpoint {folder} is for {', '.join(sorted(noted))}, "
            f"not for {', '.join(sorted(ids))}: name another folder"
        )
    if not ids.keys() <= noted.keys():
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f".{MARK}.new"
        new.write_text(json.dumps(noted | ids, indent=1))
        os.replace(new, mark)
    return str(folder)


def _noted(mark: Path) -> dict[str, str]:
    """The stored topic ids by name; empty at the first use."""
    if not mark.exists():
        return {}
    try:
        noted = json.loads(mark.read_text())
    except ValueError:
        noted = None
    if not isinstance(noted, dict):
        raise ConfigError(f"{mark} has no topic ids: delete {mark.parent} to start again")
    return noted


def _topic_ids(cluster: Cluster, topics: tuple[str, ...]) -> dict[str, str]:
    ids: dict[str, str] = {}

    async def ask(client: Client) -> None:
        found = await client.existing(topics)
        ids.update({name: str(topic.topic_id) for name, topic in found.items()})

    cluster.ask(ask)
    return ids
