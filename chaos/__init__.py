"""Chaos tests: real nodes and stock clients under faults of processes, links and disks, followed by a full check."""
