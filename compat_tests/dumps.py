"""Runs Kafka's DumpLogSegments on every file of a data directory."""

import re
from collections import Counter
from pathlib import Path

from oracle.tools import tool

INTERNAL = {"__consumer_offsets": "--offsets-decoder", "__transaction_state": "--transaction-log-decoder"}
METADATA = "__cluster_metadata-0"
AT_ONCE = 50
ABANDONED = ("-delete", "-stray")
"""Directories whose partition is gone; Apache Kafka leaves a stray one's index at its allocated size."""

COMPLAINTS = re.compile(
    r"isvalid: false|Mismatches in|Found timestamp mismatch|Found out of order|Index timestamp|"
    r"Indexed offset|is corrupt|Exception|Failed to|does not match|Could not|unparseable|isn't|Ignoring|Non-zero"
)
OF_NOTHING = re.compile(r"Found timestamp mismatch in :.*\n(?:  Index timestamp: \d+, log timestamp: -1\n)+")
"""The tool's report of a cleaned batch that stays because of its producer: its timestamp may be in the time index, but
it has no record with that timestamp. The tool reports such batches in Apache Kafka's own files, too."""
READABLE = {".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint"}


def dump(files: list[Path], *options: str) -> str:
    """The tool's output for the files; raises AssertionError if it reports an error."""
    names = ",".join(str(file) for file in files)
    said = tool("kafka-dump-log", *options, "--files", names)
    text = said.ok()
    complaint = COMPLAINTS.search(text + OF_NOTHING.sub("", said.err))
    assert complaint is None, f"{complaint} in the dump of {names}:\n{text[-3000:]}\n{said.err[-3000:]}"
    assert text.count("Dumping ") == len(files), text[:1000]
    return text


def dump_in_turn(files: list[Path], *options: str) -> None:
    """Dump many files, a few at a time, because their output is held in memory."""
    for start in range(0, len(files), AT_ONCE):
        dump(files[start : start + AT_ONCE], *options)


def dump_everything(data: Path) -> Counter[str]:
    """Dump every log, index and snapshot with its decoder. Returns the number of files of each kind."""
    kinds: Counter[str] = Counter()
    for directory in sorted(path for path in data.iterdir() if path.is_dir()):
        if directory.name.endswith(ABANDONED):
            continue
        files = sorted(path for path in directory.iterdir() if path.suffix in READABLE)
        topic = directory.name.rpartition("-")[0]
        if directory.name == METADATA:
            coded = [file for file in files if file.suffix in (".log", ".checkpoint")]
            dump_in_turn(coded, "--cluster-metadata-decoder")
            dump_in_turn([file for file in files if file not in coded])
        elif topic in INTERNAL:
            dump_in_turn(files, INTERNAL[topic])
        else:
            dump_in_turn(files, "--deep-iteration", "--print-data-log")
        kinds.update(file.suffix for file in files)
    return kinds
