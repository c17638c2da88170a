"""A sample of the conformance suite, every family and variant; `make conform` runs all of it."""

import pytest

from lazy_backend.conformance.case import VARIANTS
from lazy_backend.conformance.results import BAD
from lazy_backend.conformance.worker import all_units, run_case

# Every STRIDE-th unit, one sample of each: a few hundred cases, a minute or two.
STRIDE = 37
UNITS = {unit.name: unit for index, unit in enumerate(all_units()) if index % STRIDE == 0}


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_agrees_with_the_cpu(device, name):
    unit = UNITS[name]
    for case in unit.cases(1, frozenset(VARIANTS)):
        result = run_case(unit, case, device)
        assert result.status not in BAD, f"{case.variant}: {result.message} (blame: {result.blame})"
