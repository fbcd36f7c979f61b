"""Simulates a power loss on one replica: bytes that were never synced are lost, or only partly written.

With the settings of a run, a cluster survives the loss of records above the recovery point
(`recovery-point-offset-checkpoint`) on one replica while the other replicas keep their records. The metadata log is
synced before any response, so only a partial write is appended to it.
"""

from pathlib import Path
from random import Random

METADATA = "__cluster_metadata-0"
BATCH_HEADER_BYTES = 61
FAR_BYTES = 200_000
TORN_SHARE = 0.7


def tear(data: Path, chance: Random) -> list[str]:
    """Tear the active segments below `data` while the node is down. Returns one line for each."""
    kept = recovery_points(data)
    done = []
    for directory in sorted(path for path in data.iterdir() if path.is_dir() and list(path.glob("*.log"))):
        log = max(directory.glob("*.log"))
        if chance.random() > TORN_SHARE or "-delete" in directory.name or "-stray" in directory.name:
            continue
        content = log.read_bytes()
        size = len(content)
        cut = size if directory.name == METADATA else _cut_at(content, kept.get(directory.name, 0), chance)
        tail = _tail(content, chance)
        with log.open("r+b") as file:
            file.truncate(cut)
            file.seek(cut)
            file.write(tail)
        done.append(f"{directory.name}/{log.name}: {size - cut} bytes lost, {len(tail)} in their place")
    return done


def recovery_points(data: Path) -> dict[str, int]:
    """Directory name -> the offset up to which the log is synced."""
    file = data / "recovery-point-offset-checkpoint"
    if not file.exists():
        return {}
    rows = [line.split() for line in file.read_text().splitlines()[2:]]
    return {f"{row[0]}-{row[1]}": int(row[2]) for row in rows if len(row) == 3}


def _cut_at(content: bytes, kept: int, chance: Random) -> int:
    """Return a position above the synced batches, sometimes between two batches and sometimes inside one."""
    at = 0
    while at + BATCH_HEADER_BYTES <= len(content):
        last = int.from_bytes(content[at : at + 8], "big") + int.from_bytes(content[at + 23 : at + 27], "big")
        if last >= kept:
            break
        at += 12 + int.from_bytes(content[at + 8 : at + 12], "big")
    lowest = max(at, len(content) - FAR_BYTES)
    return chance.randint(min(lowest, len(content)), len(content))


def _tail(content: bytes, chance: Random) -> bytes:
    kind = chance.choice(("nothing", "zeros", "noise", "an old header"))
    if kind == "zeros":
        return bytes(chance.randrange(1, 4096))
    if kind == "noise":
        return chance.randbytes(chance.randrange(1, 4096))
    return content[:BATCH_HEADER_BYTES] if kind == "an old header" else b""
