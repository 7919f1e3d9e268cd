"""Activations whose Lipschitz constant is 1."""
