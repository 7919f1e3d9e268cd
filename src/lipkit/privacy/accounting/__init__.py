"""Accountants: from noise, rate and number of releases to epsilon at a given delta."""
