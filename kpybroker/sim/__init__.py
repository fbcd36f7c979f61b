"""The simulator: runs whole clusters in virtual time, on a network and disks that fail as real ones can.

A seed determines the whole run. The simulator starts the product's own nodes with another `World`. The code of the
product is the same in a simulation.
"""
