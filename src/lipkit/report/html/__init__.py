"""The page: sections, drawings, markup and style."""
