"""Stage 5 runs what it names: each operator of each family has samples."""

import re

import pytest

from lazy_backend.conformance.worker import all_units
from lazy_backend.porting.stages.operators import FAMILIES, pattern


@pytest.fixture(scope="module")
def names():
    return [unit.name for unit in all_units()]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_operator_of_a_family_has_samples_in_some_dtype(family, names):
    for operator in FAMILIES[family].split():
        found = [name for name in names if re.match(pattern([operator]), name)]
        assert found and {name.partition(":")[0] for name in found} == {f"ops/{operator}"}, operator
