"""What is known of data that were not seen: complexities of classes, capacities of networks, measured gaps."""
