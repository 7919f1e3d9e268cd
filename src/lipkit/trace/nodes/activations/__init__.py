"""Scalar functions: their slopes and ranges on every interval."""
