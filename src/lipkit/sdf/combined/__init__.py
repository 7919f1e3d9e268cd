"""Fields made from fields."""
