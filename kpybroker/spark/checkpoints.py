"""A checkpoint that stays with its topics: Spark notes names and offsets only, and would go on with anything."""

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kpybroker.client.client import Client, CommandFailed, parse_bootstrap
from kpybroker.errors import ConfigError, KafkaError, MalformedFrame
from kpybroker.world.real import real_world

MARK = "kpybroker.json"
TIMEOUT_MS = 5_000


def checkpoint(folder: Path, bootstrap: str, *topics: str) -> str:
    """A `checkpointLocation` on this machine for a query that reads these topics, over a listener without TLS or SASL.

    At first use the topics' ids are noted in it (KIP-516: another cluster's topic of that name has another).
    ConfigError if a topic is not there, or is not the one that the checkpoint was begun with.
    """
    with ThreadPoolExecutor(1) as thread:  # a notebook's own has a loop that is running
        ids = thread.submit(asyncio.run, _topic_ids(bootstrap, topics)).result()
    mark = folder / MARK
    noted = _noted(mark)
    others = sorted(name for name in ids if noted.get(name, ids[name]) != ids[name])
    if others:
        raise ConfigError(
            f"the checkpoint {folder} was begun with another topic {', '.join(others)}, of another cluster or deleted "
            "since: name another folder, or delete this one to begin again"
        )
    if noted and ids.keys().isdisjoint(noted):
        raise ConfigError(
            f"the checkpoint {folder} is of {', '.join(sorted(noted))}, "
            f"not of {', '.join(sorted(ids))}: name another folder"
        )
    if not ids.keys() <= noted.keys():
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f".{MARK}.new"
        new.write_text(json.dumps(noted | ids, indent=1))
        os.replace(new, mark)
    return str(folder)


def _noted(mark: Path) -> dict[str, str]:
    """Topic ids by name; none at first use."""
    if not mark.exists():
        return {}
    try:
        noted = json.loads(mark.read_text())
    except ValueError:
        noted = None
    if not isinstance(noted, dict):
        raise ConfigError(f"{mark} does not hold topic ids: delete {mark.parent} to begin again")
    return noted


async def _topic_ids(bootstrap: str, topics: tuple[str, ...]) -> dict[str, str]:
    client = Client(real_world().network, parse_bootstrap(bootstrap), TIMEOUT_MS)
    try:
        await client.start()
        found = await client.existing(topics)
    except (CommandFailed, KafkaError, MalformedFrame, OSError) as error:
        raise ConfigError(str(error)) from error
    finally:
        client.close()
    return {name: str(topic.topic_id) for name, topic in found.items()}
