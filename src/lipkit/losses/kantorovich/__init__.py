"""Losses from optimal transport: KR, hinge, HKR and their relatives."""
