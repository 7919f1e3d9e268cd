"""Inputs of commands: models, weights, data sets, recipes, and the words of the command line."""
