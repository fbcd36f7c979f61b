"""Record batches for the raw loads."""

import time

from kpybroker.wire.records.batch import encode_batch


def batch(records: int, record_bytes: int) -> bytes:
    """One uncompressed batch of that many records, each with a value of `record_bytes` and no key."""
    values = [(None, (b"%08d" % number).ljust(record_bytes, b".")) for number in range(records)]
    return bytes(encode_batch(values, timestamp_ms=int(time.time() * 1000)))
