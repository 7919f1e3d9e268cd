"""Commands: where strings, files and printed tables live."""
