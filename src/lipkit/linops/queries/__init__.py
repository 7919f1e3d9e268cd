"""Questions about the structure of an operator, each a function that dispatches on its type."""
