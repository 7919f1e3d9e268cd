"""Lipschitz constants of neural networks: every number says what it proves."""
