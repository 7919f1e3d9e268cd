"""What a constant says of the space between points and surfaces: rays, clearances, pictures."""
