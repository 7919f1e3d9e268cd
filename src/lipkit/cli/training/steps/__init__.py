"""Steps of a training: by gradients of batches, or by private sums."""
