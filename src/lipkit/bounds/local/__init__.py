"""Bounds on a region: ranges of values, linear relaxations, and methods that use them."""
