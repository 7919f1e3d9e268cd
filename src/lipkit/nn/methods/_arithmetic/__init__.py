"""Arithmetic that methods share: Gram matrices, symbols, products, scaling."""
