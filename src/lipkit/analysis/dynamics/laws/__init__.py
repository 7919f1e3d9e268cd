"""What models of training predict of its constant, and diagnostics of a profile."""
