"""The simulator: whole clusters in virtual time, on a network and disks that fail as real ones may.

A seed decides everything. The nodes are the product's own, started with another `World`; nothing in the product knows.
"""
