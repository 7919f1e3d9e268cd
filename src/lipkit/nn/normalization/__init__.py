"""Normalisation and centering with a constant."""
