"""What commands read: models, weights, data sets, recipes, and the words of the command line."""
