"""What one record can do to the gradient of each tensor of a network."""
