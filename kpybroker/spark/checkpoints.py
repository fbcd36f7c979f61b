"""Ties a checkpoint to its topics: Spark records only names and offsets, and would continue with any topic."""

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kpybroker.client.client import Client, CommandFailed, parse_bootstrap
from kpybroker.client.dialer import Dialer
from kpybroker.errors import ConfigError, KafkaError, MalformedFrame
from kpybroker.world.real import real_world

MARK = "kpybroker.json"
TIMEOUT_MS = 5_000


def checkpoint(folder: Path, bootstrap: str, *topics: str) -> str:
    """A local `checkpointLocation` for a query that reads these topics, over a listener without TLS or SASL.

    The first use records the topics' ids in it (KIP-516: a topic of the same name in another cluster has another id).
    Raises ConfigError if a topic does not exist, or is not the one that the checkpoint was created for.
    """
    with ThreadPoolExecutor(1) as thread:  # the thread of a notebook already runs a loop
        ids = thread.submit(asyncio.run, _topic_ids(bootstrap, topics)).result()
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
    """The recorded topic ids by name; none at first use."""
    if not mark.exists():
        return {}
    try:
        noted = json.loads(mark.read_text())
    except ValueError:
        noted = None
    if not isinstance(noted, dict):
        raise ConfigError(f"{mark} has no topic ids: delete {mark.parent} to start again")
    return noted


async def _topic_ids(bootstrap: str, topics: tuple[str, ...]) -> dict[str, str]:
    client = Client(Dialer(real_world().network), parse_bootstrap(bootstrap), TIMEOUT_MS)
    try:
        await client.start()
        found = await client.existing(topics)
    except (CommandFailed, KafkaError, MalformedFrame, OSError) as error:
        raise ConfigError(str(error)) from error
    finally:
        client.close()
    return {name: str(topic.topic_id) for name, topic in found.items()}
