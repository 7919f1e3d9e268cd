"""Exact signed distances."""
