"""Equality with VERL 0.9.1; `make test-verl` runs this folder, in an environment that has VERL."""

import pytest

from ragged_batch import make_batch


@pytest.fixture(
    scope="session",
    params=[(0, "one"), (1, "several"), (2, "one"), (3, "several")],
    ids=lambda param: f"{param[1]}-{param[0]}",
)
def batch(request):
    return make_batch(*request.param)
