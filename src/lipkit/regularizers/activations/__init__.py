"""Penalties on what modules compute: activations and attention."""
