"""Cross-entropies that ask for a margin or a certified radius."""
