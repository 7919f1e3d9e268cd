"""What a report shows, gathered from a model and its evaluation as plain data."""
