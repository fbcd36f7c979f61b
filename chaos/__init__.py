"""Chaos tests: real nodes and stock clients run under faults of processes, links and disks, and then all data is
checked."""
