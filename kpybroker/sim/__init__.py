"""The simulator: whole clusters in virtual time, on a network and disks that fail as real ones may.

A seed determines the whole run. The simulator starts the product's own nodes with another `World`; the product does
not know that it is simulated.
"""
