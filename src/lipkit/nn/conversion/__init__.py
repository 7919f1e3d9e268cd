"""Rewriting ordinary models into models with a constant."""
