"""The simulator: whole clusters in virtual time, on a network and disks that fail the way real ones can.

A seed determines the whole run. The simulator starts the product's own nodes with another `World`; the product does
not know that it is simulated.
"""
