"""What `lower` promises its callers."""

import numpy as np
import pytest
import torch

from ops_core import interpret, lowering
from ops_core.ir import Graph
from ops_core.lowering import NeedsStatic, NotLowerable, lower


class Bench:
    """A graph with loads and params, and its values after interpretation."""

    def __init__(self):
        self.graph, self.memory, self.params = Graph(), {}, []

    def load(self, array, dtype):
        slot = len(self.memory)
        self.memory[slot] = np.ascontiguousarray(array).reshape(-1).copy()
        strides = tuple(s // array.itemsize for s in np.ascontiguousarray(array).strides)
        return self.graph.add("load", (), array.shape, dtype, slot=slot, sizes=array.shape, strides=strides, offset=0)

    def param(self, value, dtype="f64"):
        self.params.append(value)
        return self.graph.add("param", (), (), dtype, index=len(self.params) - 1)

    def value(self, v):
        return interpret.run(self.graph, self.memory, self.params)[v]


@pytest.fixture
def bench():
    return Bench()


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_run_time_scalar_is_an_input_not_a_constant(bench):
    out = lower(bench.graph, "aten.mul.Tensor", [bench.load(X, "f32"), bench.param(2.5)], {}).outputs[0]
    np.testing.assert_array_equal(bench.value(out), X * 2.5)
    bench.params[0] = -1.0
    np.testing.assert_array_equal(bench.value(out), -X)


def test_a_number_promotes_weakly_and_a_zero_dim_tensor_strongly_only_across_kinds(bench):
    integers = bench.load(np.arange(3, dtype=np.int32), "i32")
    assert lower(bench.graph, "aten.mul.Tensor", [integers, bench.param(2, "i64")], {}).outputs[0].dtype == "i32"
    assert lower(bench.graph, "aten.mul.Tensor", [integers, bench.param(2.0)], {}).outputs[0].dtype == "f32"


def test_an_in_place_op_returns_and_writes_the_new_value_in_selfs_dtype(bench):
    halves = bench.load(np.ones(3, np.float32), "bf16")
    lowered = lower(bench.graph, "aten.add_.Tensor", [halves, bench.load(np.ones(3, np.float32), "f32")], {})
    assert lowered.writes["self"] is lowered.outputs[0]
    assert lowered.outputs[0].dtype == "bf16"


def test_an_out_argument_is_written_in_its_own_dtype(bench):
    x, out = bench.load(X, "f32"), bench.load(np.zeros((2, 3)), "f64")
    lowered = lower(bench.graph, "aten.add.out", [x, x], {"out": out})
    assert lowered.writes["out"].dtype == "f64"


def test_hidden_writes_of_batch_norm_are_returned(bench):
    x, stat = bench.load(np.random.randn(4, 3).astype(np.float32), "f32"), bench.load(np.zeros(3, np.float32), "f32")
    lowered = lower(bench.graph, "aten.native_batch_norm.default", [x, None, None, stat, stat, True, 0.1, 1e-5], {})
    assert set(lowered.writes) == {"running_mean", "running_var"}


def test_a_list_argument_is_written_as_a_list(bench):
    xs = [bench.load(X, "f32"), bench.load(X, "f32")]
    lowered = lower(bench.graph, "aten._foreach_mul_.Scalar", [xs, bench.param(3.0)], {})
    np.testing.assert_array_equal(bench.value(lowered.writes["self"][1]), X * 3)


def test_list_results_are_flattened(bench):
    xs = [bench.load(X, "f32"), bench.load(X, "f32")]
    assert len(lower(bench.graph, "aten._foreach_add.List", [xs, xs], {}).outputs) == 2


def test_scalars_that_shape_the_program_must_be_static(bench):
    with pytest.raises(NeedsStatic) as caught:
        lower(bench.graph, "aten.linalg_vector_norm.default", [bench.load(X, "f32"), bench.param(3.0)], {})
    assert caught.value.names == {"ord"}
    assert "ord" in lowering.static_scalars("aten.linalg_vector_norm.default")


def test_a_scalar_stays_dynamic_through_pytorchs_own_decomposition(bench):
    out = lower(bench.graph, "aten.renorm.default", [bench.load(X, "f32"), 2, 0, bench.param(0.5)], {}).outputs[0]
    for limit in (0.5, 3.0):
        bench.params[0] = limit
        np.testing.assert_allclose(bench.value(out), torch.tensor(X).renorm(2, 0, limit).numpy(), rtol=1e-6)


def test_what_has_no_way_says_so(bench):
    with pytest.raises(NotLowerable, match="no decomposition"):
        lower(bench.graph, "aten.linalg_eig.default", [bench.load(X[:2, :2].copy(), "f32")], {})


def test_complex_tensors_are_pairs(bench):
    z = lowering.Complex(bench.load(X, "f32"), bench.load(X + 1, "f32"))
    product = lower(bench.graph, "aten.mul.Tensor", [z, z], {}).outputs[0]
    want = (X + 1j * (X + 1)) ** 2
    np.testing.assert_allclose(bench.value(product.re) + 1j * bench.value(product.im), want, rtol=1e-6)


def test_a_random_op_consumes_a_fixed_number_of_counters(bench):
    seed, offset = bench.param(1, "i64"), bench.param(0, "i64")
    first = lower(bench.graph, "aten.rand.default", [[8]], {"seed": seed, "offset": offset}).outputs[0]
    whole = bench.value(first)
    bench.params[1] = lowering.rng_counters(4)
    np.testing.assert_array_equal(bench.value(first)[:4], whole[4:])


def test_the_recorders_list_names_overloads_that_exist():
    for name in lowering.record_list():
        _, base, overload = name.split(".")
        assert overload in getattr(torch.ops.aten, base).overloads()
