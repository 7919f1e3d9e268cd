"""Derivatives of singular values, of any order and with a bounded remainder."""
