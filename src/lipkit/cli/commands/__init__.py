"""The commands, one file each, and how they end."""
