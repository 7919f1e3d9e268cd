"""Norms of operators that can only be applied: power iteration and Lanczos."""
