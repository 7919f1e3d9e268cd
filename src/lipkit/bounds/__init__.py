"""Whole-network bounds: frozen dataclasses that turn a network and a region into a bound with its kind."""

from lipkit.bounds._base import Method as Method
