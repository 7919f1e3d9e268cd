"""Attention with a constant on the whole space."""
