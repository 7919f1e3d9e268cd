"""From votes to confidence events: limits of shares, ways to spend alpha, how many samples it takes."""
