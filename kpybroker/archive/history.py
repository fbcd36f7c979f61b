"""Reads all manifests of an archive in order, checks that they are consistent, and gives the content of the archive."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kpybroker.archive.manifest import MANIFESTS_MAX, ArchivedFile, Manifest, NotAManifest, Span, decode, encode
from kpybroker.archive.store import Store
from kpybroker.client.client import CommandFailed

FOLDER = "_archive"
DIGITS = 20
RUN = re.compile(r"run=(\d{8})-[0-9a-f]{12}")
"""The folder of one round: the number of the manifest that it tries to commit, and a random part."""
TopicPartition = tuple[str, int]


def new_run(number: int) -> str:
    """A unique name for a round that tries to commit manifest `number`."""
    return f"{number:08}-{uuid.uuid4().hex[:12]}"


def name_of(number: int) -> str:
    """The path of a manifest below the archive's folder."""
    return f"{FOLDER}/{number:0{DIGITS}}.json"


@dataclass(slots=True, frozen=True)
class ArchiveHistory:
    """The content of an archive. `digest`: the digest of the newest manifest, None for an empty folder. `topic_ids`:
    topic ids by name."""

    manifests: tuple[Manifest, ...] = ()
    digest: str | None = None
    topic_ids: dict[str, str] = field(default_factory=dict)
    _ends: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def next_number(self) -> int:
        return len(self.manifests) + 1

    @property
    def origin(self) -> Manifest | None:
        """The first manifest with records, which determines the cluster and the isolation level of the archive."""
        return next((manifest for manifest in self.manifests if manifest.topics), None)

    @property
    def runs(self) -> set[str]:
        """Names of the run folders that belong to the archive."""
        return {manifest.run for manifest in self.manifests if manifest.topics}

    def lacks(self, folder: str) -> str | None:
        """An error text if the folder of a round shows that manifests are missing, else None."""
        run = RUN.fullmatch(folder)
        if run is None or int(run[1]) <= self.next_number:
            return None
        return (
            f"data/{folder} was written after manifest {int(run[1]) - 1}, but the newest in {FOLDER} is "
            f"{len(self.manifests)}: restore the missing ones"
        )

    def unfinished(self, store: Store) -> list[str]:
        """Folders in `data` of rounds that were never committed.

        Raises CommandFailed if `data` has other content, or a folder of a round that shows that manifests are missing.
        """
        names = [name for name in store.names("data") if name.removeprefix("run=") not in self.runs]
        for name in names:
            if RUN.fullmatch(name) is None:
                raise CommandFailed(f"{store.uri}/data/{name} does not belong to an archive: move it elsewhere")
            if (gone := self.lacks(name)) is not None:
                raise CommandFailed(f"{store.uri}/{gone}; nothing was written")
        return names

    def spans(self) -> Iterator[tuple[str, Span]]:
        """Pairs of topic and span, oldest first."""
        for manifest in self.manifests:
            for topic in manifest.topics:
                for span in topic.spans:
                    yield topic.name, span

    def files(self) -> Iterator[tuple[TopicPartition, ArchivedFile]]:
        for topic, span in self.spans():
            for file in span.files:
                yield (topic, span.partition), file

    def ends(self) -> dict[TopicPartition, int]:
        """The start of the next span of each partition, unless the topic has deleted these offsets by then."""
        return dict(self._ends)

    def require(self, cluster_id: str, topic_ids: dict[str, str], isolation: str, where: str) -> None:
        """Raise CommandFailed if the archive is of another cluster, topic or isolation level."""
        origin = self.origin
        if origin is not None and origin.cluster_id != cluster_id:
            raise CommandFailed(
                f"{where} is an archive of the cluster {origin.cluster_id}, but this is {cluster_id}: "
                "name another folder"
            )
        if origin is not None and origin.isolation != isolation:
            raise CommandFailed(f"{where} was written with {origin.isolation}, and can only be continued with it")
        for topic, known in self.topic_ids.items():
            wanted = topic_ids.get(topic)
            if wanted is not None and wanted != known:
                raise CommandFailed(
                    f"{where} has another topic named {topic} (id {known}; this one has id {wanted}, as it was deleted "
                    "and recreated): name another folder"
                )

    def with_next(self, manifest: Manifest, digest: str) -> ArchiveHistory:
        """This history plus one manifest. Raises NotAManifest if the manifest does not continue where this history
        ends."""
        if manifest.number != self.next_number:
            raise NotAManifest(f"its number is {manifest.number}")
        if manifest.previous != self.digest:
            raise NotAManifest("it does not follow the manifest before it, which was replaced")
        ends, ids = self.ends(), dict(self.topic_ids)
        for topic in manifest.topics:
            if ids.setdefault(topic.name, topic.topic_id) != topic.topic_id:
                raise NotAManifest(f"it has another topic named {topic.name}")
            for span in topic.spans:
                before = ends.get((topic.name, span.partition), span.lost_from)
                if span.lost_from != before:
                    what = "overlap" if span.lost_from < before else "leave a hole after"
                    raise NotAManifest(f"its offsets of {topic.name}-{span.partition} {what} the earlier ones")
                ends[topic.name, span.partition] = span.end
        return ArchiveHistory((*self.manifests, manifest), digest, ids, ends)


def load(store: Store) -> ArchiveHistory:
    """Read the archive in a folder; an empty ArchiveHistory if the folder is empty or does not exist.

    Raises CommandFailed if a manifest is missing, incomplete or changed, or the folder has other content.
    """
    names = store.names(FOLDER)
    numbers = sorted(int(name[:DIGITS]) for name in names if _is_manifest(name))
    if not numbers:
        strangers = [name for name in store.names("") if name not in (FOLDER, "data")]
        if strangers:
            raise CommandFailed(
                f"{store.uri} is not an archive, as it has {strangers[0]}: name an empty folder, or a new one"
            )
        return ArchiveHistory()
    if len(numbers) > MANIFESTS_MAX or numbers[0] == 0:
        stranger = name_of(numbers[-1] if numbers[0] else 0)
        raise CommandFailed(
            f"{store.uri}/{stranger} is not a manifest of an archive, as it has no number from 1 to {MANIFESTS_MAX}; "
            "nothing was written"
        )
    missing = set(range(1, numbers[-1] + 1)).difference(numbers)
    if missing:
        raise CommandFailed(f"{store.uri}/{name_of(min(missing))} is missing: restore it; nothing was written")
    return _read(store, numbers)


def _is_manifest(name: str) -> bool:
    return len(name) == DIGITS + len(".json") and name.endswith(".json") and name[:DIGITS].isdecimal()


def _read(store: Store, numbers: Sequence[int]) -> ArchiveHistory:
    history = ArchiveHistory()
    for number in numbers:
        try:
            history = history.with_next(*decode(store.read(name_of(number))))
        except NotAManifest as problem:
            raise CommandFailed(
                f"{store.uri}/{name_of(number)} is invalid: {problem}. Restore the original; nothing was written"
            ) from problem
    return history


def commit(store: Store, history: ArchiveHistory, manifest: Manifest) -> ArchiveHistory:
    """Add `manifest` to the archive. Raises CommandFailed if another archiver committed this number first."""
    data, digest = encode(manifest)
    after = history.with_next(manifest, digest)
    if not store.create(name_of(manifest.number), data):
        raise CommandFailed(
            f"another archiver has written {name_of(manifest.number)} in the meantime: this round was abandoned, and "
            "none of its files are kept. Run one archiver at a time; the other archiver's round is complete"
        )
    return after
