"""Steps of private training: accepted records, batches, noised sums of gradients, the way back to parameters."""
