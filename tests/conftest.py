"""How hypothesis runs. lipkit is not imported here: shape checks are installed after this file is read."""

import os

from hypothesis import settings

# The same examples in every CI run; fresh ones on a developer's machine.
settings.register_profile("lipkit", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("lipkit")
