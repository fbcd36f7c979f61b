"""Scheduled delivery: records that are appended to their partition at a time that their producer chose.

`division.py` divides a batch into the records that are due and those that are not. The leader of the partition appends
the batch without the latter, and writes them to the partition with the same index of the topic's delivery log
(`__scheduled.<topic>`). The leader of that partition (`leader.py`) keeps an index of the pending records by time
(`state.py`), and sends due ones to the partition's leader. docs/decisions/0024 has the protocol.
"""
