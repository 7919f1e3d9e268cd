"""Penalties on derivatives with respect to the input."""
