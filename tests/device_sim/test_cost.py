"""The cost of generated kernels, read off their source, against counts that can be done by hand."""

import numpy as np
import pytest

from codegen import schedule
from codegen.index import contiguous
from codegen.plan import SlotInfo
from device_sim import cost
from device_sim.cost import kernel_work
from lazy_backend.driver.base import Buffer, Scalar
from lazy_backend.driver.capabilities import Capabilities
from ops_core.ir import Graph

from .kernels import SOURCE


class Memory:
    def __init__(self, nbytes):
        self.nbytes = nbytes


NUMBER = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64}


def work_of(language, op, shapes, out, **attrs):
    """(operations by dtype, bytes) of a graph of one op, all its launches."""
    works = works_of(language, op, shapes, out, **attrs)
    flops = {k: sum(work.flops.get(k, 0) for work in works) for k in {k for work in works for k in work.flops}}
    return flops, sum(work.bytes for work in works)


def works_of(language, op, shapes, out, row=0, **attrs):
    """The work of each launch of a graph of one op. row: elements between the rows of inputs that are not dense."""
    graph = Graph()
    strides = [(row, 1) if row else contiguous(s) for s in shapes] + [contiguous(out)]
    views = [
        {"slot": i, "sizes": s, "strides": t, "offset": 0}
        for i, (s, t) in enumerate(zip([*shapes, out], strides, strict=True))
    ]
    values = tuple(graph.add("load", (), v["sizes"], "f32", **v) for v in views[:-1])
    graph.add_multi("store", (graph.add(op, values, out, "f32", **attrs),), [], **views[-1])
    sizes = {i: 4 * max(int(np.prod(s)), row * s[0]) for i, s in enumerate([*shapes, out])}
    return works_in(graph, sizes, language)


def works_in(graph, sizes, language):
    """The work of each launch of a graph. sizes: bytes by slot."""
    caps = Capabilities(language=language, is_cpu=True, compute_units=2, vector_bytes=64, has_f64=True).complete()
    plan = schedule.plan(graph, {i: SlotInfo(n) for i, n in sizes.items()}, caps)
    works = []
    for launch in plan.launches:
        args = []
        for arg in launch.args:
            if arg.kind in ("slot", "temp"):
                args.append(Buffer(Memory(sizes[arg.value] if arg.kind == "slot" else plan.temps[arg.value].nbytes)))
            else:
                args.append(Scalar(NUMBER[arg.type](arg.value).tobytes()))
        kernel = plan.kernels[launch.kernel]
        works.append(kernel_work(kernel.source, kernel.name, launch.global_size, launch.local_size, args))
    return works


N = 1 << 18


@pytest.mark.parametrize("language", ["c", "opencl"])
def test_an_addition_moves_its_three_tensors(language):
    flops, moved = work_of(language, "map", [(N,), (N,)], (N,), fn="add")
    assert moved == pytest.approx(12 * N, rel=0.05) and flops["f32"] == pytest.approx(N, rel=0.05)


@pytest.mark.parametrize("language", ["c", "opencl"])
def test_rows_that_vectors_do_not_divide_count_as_rows_that_they_do(language):
    """The kernel has a branch for the end of a row, with a loop that is long only from the row's beginning."""
    (work,) = works_of(language, "map", [(766, 766), (766, 766)], (766, 766), row=768, fn="add")
    assert work.flops["f32"] == pytest.approx(766**2, rel=0.05)
    assert work.bytes == pytest.approx(12 * 766**2, rel=0.05)


@pytest.mark.parametrize("language", ["c", "opencl"])
def test_a_row_sum_reads_once(language):
    flops, moved = work_of(language, "sum", [(512, 256)], (512,), dims=(1,))
    assert moved == pytest.approx(4 * 512 * 257, rel=0.05) and flops["f32"] == pytest.approx(512 * 256, rel=0.1)


@pytest.mark.parametrize("language", ["c", "opencl"])
def test_a_matrix_product_counts_every_multiply_and_add(language):
    flops, moved = work_of(language, "matmul", [(256, 256), (256, 256)], (256, 256))
    assert flops["f32"] == pytest.approx(2 * 256**3, rel=0.2)
    assert moved >= 3 * 4 * 256**2


@pytest.mark.parametrize("language", ["c", "opencl"])
@pytest.mark.parametrize("lengths", [(N, 64, 5000), (64, 5000, N)], ids=["longest first", "longest last"])
def test_a_launch_over_several_tensors_counts_each(language, lengths):
    """An optimizer's kernel: which tensor a group works on, and how far, follows from its number."""
    graph, sizes = Graph(), {}
    for slot, n in enumerate(lengths):
        view = {"slot": slot, "sizes": (n,), "strides": (1,), "offset": 0}
        doubled = graph.add("map", (graph.add("load", (), (n,), "f32", **view),) * 2, (n,), "f32", fn="add")
        graph.add_multi("store", (doubled,), [], **view)
        sizes[slot] = 4 * n
    (work,) = works_in(graph, sizes, language)
    assert work.bytes == pytest.approx(8 * sum(lengths), rel=0.05)
    assert work.flops["f32"] == pytest.approx(sum(lengths), rel=0.15), "the last group of a tensor counts as a full one"


@pytest.mark.parametrize("language", ["c", "opencl"])
def test_a_column_sum_of_long_rows_turns_a_page_with_every_row(language):
    (far,) = works_of(language, "sum", [(512, 4096)], (4096,), dims=(0,))
    (near,) = works_of(language, "sum", [(512, 64)], (64,), dims=(0,))
    assert far.scattered == pytest.approx(4 * 512 * 4096) and near.scattered == 0


@pytest.mark.parametrize("language", ["c", "opencl"])
@pytest.mark.parametrize("fn, special", [("sqrt", 1), ("tanh", 1), ("exp", 0)])
def test_roots_and_divisions_are_counted_apart(language, fn, special):
    flops, _ = work_of(language, "map", [(N,)], (N,), fn=fn)
    assert flops.get("special", 0) == pytest.approx(special * N, rel=0.05)


@pytest.mark.parametrize("language", ["c", "opencl"])
def test_of_a_branch_in_a_function_the_usual_side_counts(language):
    flops, _ = work_of(language, "map", [(N,)], (N,), fn="sin")
    assert 20 * N < flops["f32"] < 40 * N, "without the reduction of huge angles"


def test_a_hand_written_kernel():
    args = [Buffer(Memory(4096)), Buffer(Memory(4096)), Scalar(b"\0\0\0\0")]
    work = kernel_work(SOURCE, "scale", (1024, 1, 1), (64, 1, 1), args)
    assert (work.flops, work.bytes, work.groups) == ({"f32": 1024.0}, 8192.0, 16)


def test_which_arguments_are_only_read():
    assert cost.constant_arguments(SOURCE, "scale") == [True, False]


def test_a_source_that_is_not_understood_touches_all_it_reaches():
    args = [Buffer(Memory(1000), 200)]
    assert kernel_work("something else", "k", (8, 1, 1), (4, 1, 1), args).bytes == 800
