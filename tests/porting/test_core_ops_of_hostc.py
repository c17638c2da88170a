"""Stage 4 on the worked port: ops whose kernels choose between lanes of an index, which C writes as a mask, or take
the bits of halves."""

import pytest

from lazy_backend.porting import worker
from lazy_backend.porting.bench import Bench
from lazy_backend.porting.stages import STAGES, checks_of


@pytest.fixture(scope="module")
def bench():
    return Bench("hostc")


@pytest.mark.parametrize("op", ["pad", "argmax", "map pow", "map bitcast", "map nextafter"])
def test_a_core_op_gives_the_references_bits(bench, op):
    (check,) = (c for c in checks_of(STAGES[4]) if c.name == op)
    found = worker.run_check(bench, check)
    assert found["status"] == "pass", found["text"]
