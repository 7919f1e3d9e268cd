"""Bounds on paper: certificates, how they are issued and checked again."""
