"""Rows that the items of a group share on a GPU: loops of known numbers of turns, vectors known to be aligned."""

from __future__ import annotations

import re

import numpy as np
import pytest

from codegen import multiples
from codegen.kernels import lanes_of_rows
from codegen.mlir import parse
from codegen.printer import print_source
from ops_core.array import Arr
from ops_core.sizes import Tape, tracing
from tests.codegen.case import Case, build
from tests.codegen.test_kept_rows import norm_block, reference, rows, run, softmax

GPU = {"is_cpu": False, "vector_bytes": 4, "max_work_group_size": 256, "local_memory_bytes": 32 << 10}
ADDRESSES = GPU | {"address_args": True}


def source(length: int, offset: int = 0, stride: int = 0, fn=softmax, dtype: str = "f32") -> str:
    """The kernel's text for six rows of a buffer, after the functions that it calls."""

    def write(c: Case) -> None:
        slot = c.slot(np.zeros(6 * max(stride, length) + offset, np.float16 if dtype == "f16" else np.float32), dtype)
        x = c.view(slot, (6, length), (stride or length, 1), offset)
        c.output(fn(x.to("f32"), 1).to(dtype))

    (kernel,) = build(write).plan(**ADDRESSES).kernels
    return kernel.source[kernel.source.rindex("__attribute__((always_inline))") :]


def test_few_vectors_are_for_few_items() -> None:
    assert [lanes_of_rows.most(n, 4) for n in (1, 256, 1024, 1028, 4096)] == [64, 64, 64, 128, 128]
    assert lanes_of_rows.most(256, 1) == 64 and lanes_of_rows.most(257, 1) == 128
    assert [lanes_of_rows.turns(256, n, 256) for n in (256, 512, 1280, 1256)] == [0, 1, 4, 0]
    tape = Tape()
    n = tape.symbol(256, 256)
    with tracing(tape):
        assert lanes_of_rows.most(n, 4) == 128 and lanes_of_rows.turns(0, n * 256, 256) == 0
    assert not tape.guards


@pytest.mark.parametrize(
    ("length", "items", "loops"), [(256, 64, 0), (768, 64, 3), (1024, 64, 3), (4096, 128, 3), (8192, 128, 0)]
)
def test_loops_have_a_known_number_of_turns(length: int, items: int, loops: int) -> None:
    """One is none, few are written out; of more the compiler knows as much."""
    text = source(length)
    assert f"reqd_work_group_size({items}, 1, 1)" in text
    assert text.count("#pragma unroll\n") == loops
    assert text.count("= 0; i") == text.count("for (") == (3 if length > 256 else 0)


def test_rows_that_items_do_not_divide_are_walked_as_before() -> None:
    text = source(1000)
    assert "#pragma unroll" not in text and len(re.findall(r"for \(int i\d+ = v\d+; i\d+ < 1000", text)) == 3
    assert "_apart(const __global" in text and " LOAD(" in text and "whole" not in text


def test_whether_vectors_are_aligned_is_asked_once() -> None:
    for text in (source(1024), source(1024, fn=norm_block)):
        assert "if (((n0 | n1) & 15) == 0) k_" in text and "_apart(true, (" in text and "_apart(false, (" in text
        assert " KNOWN_LOAD(__global" in text and " KNOWN_STORE(__global" in text
        assert " LOAD(" not in text and " STORE(" not in text


def test_other_languages_and_pointers_are_not_asked() -> None:
    case = build(lambda c: c.output(softmax(c.input(rows(6, 1024)), 1)))
    (kernel,) = case.plan(**GPU).kernels
    assert "asked_once" in kernel.mlir and "whole" not in kernel.source[kernel.source.rindex("__kernel") :]
    for name, addresses in (("c", True), ("cuda", True), ("opencl", False)):
        assert "KNOWN_" not in print_source(kernel.mlir, name, addresses, apart=True).program()


def test_what_is_asked_is_what_the_vectors_need() -> None:
    """Of halves the half; of a first element's place that it is a multiple; nothing helps rows of odd distances."""
    assert "if (((n0 | n1) & 7) == 0) k_" in source(1024, dtype="f16")
    assert "if (((a2) & 3) == 0 && ((n0 | n1) & 15) == 0) k_" in source(1024, offset=4)
    assert "_apart(true" in source(1024, stride=1028)
    assert "_apart(true" not in source(1024, stride=1026)


def test_long_rows_and_long_kernels_have_one_body(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "_apart(const __global" in source(8192)
    monkeypatch.setattr("codegen.printer.MOST_TWICE", 20)
    assert "_apart(const __global" in source(1024, stride=1032)


@pytest.mark.parametrize("length", [4, 60, 256, 512, 768, 1024, 1028, 2048, 4096, 16384])
def test_rows_agree_with_float64(length: int) -> None:
    for fn, in_place in ((softmax, False), (norm_block, True)):
        x = rows(5, length)
        np.testing.assert_allclose(run(fn, x, 1, "f32", GPU, in_place)[0], reference(fn, x, 1), atol=5e-6)


def test_sums_over_several_dims_have_loops_in_loops() -> None:
    def write(c: Case) -> None:
        x: Arr = c.input(rows(3, 3, 512).astype(np.float32))
        c.output(x.sum((0, 2)))

    build(write).check(**GPU)


INDICES = """
module attributes {{gpu.container_module, dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>}} {{
gpu.module @kernels {{
gpu.func @k(%x: memref<?xf32>, %n: index, %m: index) kernel {{
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c6 = arith.constant 6 : index
  %c8 = arith.constant 8 : index
  %true = arith.constant true
  %id = gpu.thread_id x
  scf.for %i = %c0 to %n step %c8 {{
    scf.for %j = %id to %n step %c8 {{
      {lines}
      %v = vector.load %x[%at] : memref<?xf32>, vector<4xf32>
      vector.store %v, %x[%at] : memref<?xf32>, vector<4xf32>
    }}
  }}
  gpu.return
}}
}}
}}
"""


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("%at = arith.addi %i, %c8 : index", 0),
        ("%at = arith.addi %i, %n : index", 1),
        ("%p = arith.muli %id, %c2 : index\n %at = arith.muli %p, %c6 : index", 0),
        ("%at = arith.muli %n, %c6 : index", 1),
        ("%at = arith.muli %n, %id : index", 1),
        ("%at = arith.muli %id, %c6 : index", None),
        ("%p = arith.subi %n, %m : index\n %at = arith.select %true, %p, %i : index", 2),
        ("%at = arith.addi %j, %c8 : index", None),
        ("%at = arith.remsi %i, %c8 : index", 0),
        ("%at = arith.remsi %i, %c6 : index", None),
        ("%at = arith.divsi %i, %c2 : index", None),
    ],
)
def test_multiples_of_four(lines: str, wanted: int | None) -> None:
    """How many arguments have to be one, too, for an index."""
    module = parse(INDICES.format(lines=lines))
    (function,) = module.body.operations[0].regions[0].blocks[0].operations
    found = list(multiples.vectors(function.operation.regions[0].blocks[0]))
    assert [lanes for _, _, lanes in found] == [4, 4]
    needs = [multiples.needed(index, lanes) for _, index, lanes in found]
    assert [n if n is None else len(n) for n in needs] == [wanted] * 2
