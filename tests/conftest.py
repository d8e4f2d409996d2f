"""The same examples in every run: a suite that fails by chance is not believed.

`HYPOTHESIS_PROFILE=search` looks for new ones.
"""

import os

try:
    from hypothesis import settings
except ModuleNotFoundError:  # the environments of VERL and vLLM do without it
    pass
else:
    settings.register_profile("same", derandomize=True, database=None)
    settings.register_profile("search", derandomize=False)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
