"""Rounding to the safe side: logarithms that are rounded outward, and rounding errors of float64 as proven bounds."""
