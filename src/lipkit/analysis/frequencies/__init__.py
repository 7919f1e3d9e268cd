"""At which frequencies a classifier looks, and what spectra say about constants."""
