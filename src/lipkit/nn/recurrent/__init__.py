"""Recurrent layers with a constant for whole sequences."""
