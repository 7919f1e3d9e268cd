"""Figures and pages made from results; nothing here computes a bound."""
