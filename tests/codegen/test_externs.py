"""Calls of a driver's library: operands that are views of memory go as they are, computed ones through one copy."""

import functools

import numpy as np

from codegen import externs
from codegen.plan import CoreCall, Plan, SlotInfo
from codegen.schedule import plan
from ops_core.array import Arr, emit, matmul
from tests.codegen.case import Case, build
from tests.codegen.run_plan import capabilities

IMAGES = np.zeros((64, 8, 12, 12), np.float32)
TAPS = np.zeros((16, 8, 3, 3), np.float32)


def convolution(x: Arr, w: Arr, places: int = 12) -> Arr:
    """3 x 3, padding 1, as long as `places` on each side."""
    attrs = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "transposed": False, "output_padding": (0, 0),
             "groups": 1}  # fmt: skip
    return emit("convolution", (x, w), (x.shape[0], w.shape[0], places, places), "f32", **attrs)


def planned(case: Case, op: str = "convolution") -> tuple[Plan, list[CoreCall]]:
    """The plan on a device with a library of that op, and its calls."""
    slots = {n: SlotInfo(m.nbytes, case.dtypes[n]) for n, m in case.memory.items()}
    result = plan(case.graph, slots, capabilities(), functools.partial(externs.claims, frozenset({op})))
    return result, [launch for launch in result.launches if isinstance(launch, CoreCall)]


def test_views_of_memory_and_the_result_are_passed_in_place():
    def write(c):
        x = c.view(c.slot(IMAGES), IMAGES.shape, (8 * 144, 144, 1, 12), 0)  # columns first
        c.output(convolution(x, c.input(TAPS)))

    result, (call,) = planned(build(write))
    assert len(result.launches) == 1 and not result.temps
    assert [(t.kind, t.sizes, t.strides) for t in call.tensors] == [
        ("slot", (64, 16, 12, 12), (16 * 144, 144, 12, 1)),
        ("slot", (64, 8, 12, 12), (8 * 144, 144, 1, 12)),
        ("slot", (16, 8, 3, 3), (72, 9, 3, 1)),
    ]


def test_a_computed_operand_is_stored_once_before_the_call():
    result, (call,) = planned(build(lambda c: c.output(convolution(c.input(IMAGES) * 2.0 + 1.0, c.input(TAPS)))))
    copy, last = result.launches
    assert last is call and not isinstance(copy, CoreCall)
    assert [t.kind for t in call.tensors] == ["slot", "temp", "slot"]
    assert [t.nbytes for t in result.temps] == [IMAGES.nbytes]


def test_what_follows_reads_the_result_from_memory():
    def write(c):
        c.output((convolution(c.input(IMAGES), c.input(TAPS)) * 2.0).sum((0, 1)))

    result, (call,) = planned(build(write))
    assert result.launches[0] is call and call.tensors[0].kind == "temp"
    assert len(result.launches) == 2


def test_only_the_places_of_a_convolution_that_are_used_are_computed():
    def write(c):
        c.output(convolution(c.input(IMAGES), c.input(TAPS)).slice(2, 0, 9) * 2.0)

    _, (call,) = planned(build(write))
    assert call.tensors[0].sizes == (64, 16, 9, 12)


def test_a_small_convolution_stays_with_the_generated_kernels():
    tiny = np.zeros((1, 8, 4, 4), np.float32)
    result, calls = planned(build(lambda c: c.output(convolution(c.input(tiny), c.input(TAPS), 4))))
    assert result.launches and not calls


def test_a_product_of_enough_work_goes_to_a_library_of_products_its_factors_as_views():
    a, b = np.zeros((160, 190), np.float32), np.zeros((150, 190), np.float32)

    def write(c):
        c.output(matmul(c.input(a), c.input(b).transpose(0, 1)))
        c.output(matmul(c.input(a[:4]), c.input(b).transpose(0, 1)))

    _, (call,) = planned(build(write), "matmul")
    assert [(t.sizes, t.strides) for t in call.tensors] == [
        ((160, 150), (150, 1)),
        ((160, 190), (190, 1)),
        ((190, 150), (1, 190)),
    ]


def test_a_result_that_is_read_in_another_order_lies_in_that_order():
    def write(c):
        c.output(convolution(c.input(IMAGES), c.input(TAPS)).transpose(0, 1) * 2.0)

    result, (call,) = planned(build(write))
    assert call.tensors[0].strides == (144, 64 * 144, 12, 1)
    assert len(result.launches) == 2


def test_a_result_that_is_kept_in_another_order_is_written_there():
    def write(c):
        gradient = convolution(c.input(IMAGES), c.input(TAPS)).transpose(0, 1)
        c.output(gradient)
        c.output(gradient * 2.0)

    result, (call,) = planned(build(write))
    assert (call.tensors[0].kind, call.tensors[0].strides) == ("slot", (144, 64 * 144, 12, 1))
    assert len(result.launches) == 2 and not result.temps


def test_a_call_may_read_what_the_call_before_it_wrote():
    def write(c):
        once = convolution(c.input(IMAGES), c.input(TAPS))
        c.output(convolution(once, c.input(np.zeros((8, 16, 3, 3), np.float32))))

    result, (first, second) = planned(build(write))
    assert result.launches == [first, second]
    assert second.tensors[1] == first.tensors[0], "the executor must not run them side by side"


def halves(c: Case) -> tuple[Arr, Arr]:
    """Two matrices of bf16."""
    return tuple(c.input(np.zeros(shape, np.uint16), "bf16") for shape in ((512, 64), (64, 512)))  # type: ignore[return-value]


def test_an_op_that_widens_halves_and_rounds_at_its_end_multiplies_the_halves():
    def write(c):
        a, b = halves(c)
        c.output((matmul(a.to("f32"), b.to("f32")) * 2.0 + 1.0).to("bf16"))

    result, (call,) = planned(build(write), "matmul")
    assert {t.dtype for t in call.tensors} == {"bf16"} and len(result.launches) == 2


def test_what_a_script_widens_itself_stays_wide():
    def stored_wide(c):
        a, b = halves(c)
        c.output(matmul(a.to("f32"), b.to("f32")) * 2.0)

    def rounded_by_another_op(c):
        a, b = halves(c)
        c.graph.origin = 1
        product = matmul(a.to("f32"), b.to("f32"))
        c.graph.origin = 2
        c.output((product - 1.0).to("bf16"))

    for write in (stored_wide, rounded_by_another_op):
        _, (call,) = planned(build(write), "matmul")
        assert {t.dtype for t in call.tensors} == {"f32"}
