"""Passes over a whole network: fusion, and layers that a model spells out put back into one node."""
