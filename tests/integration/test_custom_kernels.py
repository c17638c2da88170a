"""Kernels of the user's own."""

import pytest
import torch

import lazy_backend

AXPY = """
__kernel void axpy(__global const float* x, __global const float* y, float a, int twice, __global float* out) {
    size_t i = get_global_id(0);
    out[i] = a * x[i] + y[i] * (twice ? 2 : 1);
}
"""

axpy = lazy_backend.kernel(
    "lazy_tests::axpy",
    "(Tensor x, Tensor y, float a, bool twice) -> Tensor",
    AXPY,
    shape=lambda x, y, a, twice: torch.empty_like(x),
    work=lambda x, y, a, twice: x.numel(),
)


def remember(ctx, inputs, output) -> None:
    _, _, ctx.a, ctx.twice = inputs


def axpy_gradient(ctx, gradient):
    return gradient * ctx.a, gradient * (2 if ctx.twice else 1), None, None


torch.library.register_autograd("lazy_tests::axpy", axpy_gradient, setup_context=remember)


def expected(x, y, a, twice):
    return a * x + y * (2 if twice else 1)


def test_kernel_joins_a_window():
    """A kernel in OpenCL C is a torch op that is recorded between others and runs in their window."""
    x, y = torch.arange(6.0), torch.ones(6)
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    with torch.lazy.window(64):
        result = axpy(x.to("lazy") + 1, y.to("lazy"), 3.0, True) * 2
        assert torch.lazy.stats()["kernels_launched"] == 0, "nothing ran yet"
    assert torch.equal(result.cpu(), expected(x + 1, y, 3.0, True) * 2)
    assert torch.lazy.stats()["host_ops"] == 0


def test_scalars_do_not_compile():
    """Another scalar argument is another launch of the same kernel."""
    x = torch.arange(4.0, device="lazy")
    for a in (1.0, 2.0, 3.0):
        assert torch.equal(axpy(x, x, a, False).cpu(), expected(x.cpu(), x.cpu(), a, False))
        if a == 1.0:
            torch.lazy.reset_stats()
    assert torch.lazy.stats()["kernels_built"] == 0


def test_views_are_made_contiguous():
    """A strided or shifted argument is copied first."""
    x = torch.arange(12.0, device="lazy").view(3, 4)
    assert torch.equal(axpy(x.T, x.T, 1.0, False).cpu(), 2 * x.cpu().T)
    assert torch.equal(axpy(x[1], x[2], 1.0, False).cpu(), x.cpu()[1] + x.cpu()[2])


def test_gradient():
    """torch.library.register_autograd gives it a gradient."""
    x = torch.ones(3, device="lazy", requires_grad=True)
    axpy(x, x, 5.0, True).sum().backward()
    assert x.grad.cpu().tolist() == [7, 7, 7]


SHARED = """
__attribute__((reqd_work_group_size(64, 1, 1)))
__kernel void reversed(__global const int* x, int n, __global int* out) {
    __local int kept[64];
    int lane = get_local_id(0), first = get_group_id(0) * 64;
    if (first + lane < n) kept[lane] = x[first + lane];
    barrier(CLK_LOCAL_MEM_FENCE);
    int last = min(64, n - first) - 1;
    if (lane <= last) out[first + lane] = kept[last - lane];
}
"""


def test_memory_may_be_constant():
    """A parameter may be a pointer to `__constant` memory."""
    op = lazy_backend.kernel(
        "lazy_tests::weighted",
        "(Tensor x, Tensor table) -> Tensor",
        """
        __kernel void weighted(__global const float* x, __constant float* table, __global float* out) {
            int i = get_global_id(0);
            out[i] = x[i] * table[i % 3];
        }
        """,
        shape=lambda x, table: torch.empty_like(x),
        work=lambda x, table: x.numel(),
    )
    x, table = torch.randn(12), torch.randn(3)
    assert torch.equal(op(x.to("lazy"), table.to("lazy")).cpu(), x * table.repeat(4))


def test_work_groups_share_memory():
    """A kernel may have local memory, barriers and a work-group of its own size."""
    op = lazy_backend.kernel(
        "lazy_tests::reversed",
        "(Tensor x, int n) -> Tensor",
        SHARED,
        shape=lambda x, n: torch.empty_like(x),
        work=lambda x, n: -(-x.numel() // 64) * 64,
        group=(64, 1, 1),
    )
    x = torch.randint(100, (1000,), dtype=torch.int32)
    for start in (0, 8, 500):  # the last one is fewer items than groups
        part = x[start:]
        want = torch.cat([piece.flip(0) for piece in part.split(64)])
        assert torch.equal(op(part.to("lazy") + 0, len(part)).cpu(), want)


def test_shape_errors_come_at_the_call():
    """What the shape function raises is raised at the call."""

    def shape(x):
        raise ValueError("x must be a matrix")

    op = lazy_backend.kernel("lazy_tests::picky", "(Tensor x) -> Tensor", "", shape=shape, work=lambda x: 1)
    with pytest.raises(ValueError, match="x must be a matrix"):
        op(torch.ones(2, device="lazy"))


def test_source_that_does_not_build(caplog):
    """A compiler error is raised at the read, and the device stays usable."""
    broken = lazy_backend.kernel(
        "lazy_tests::broken",
        "(Tensor x) -> Tensor",
        "__kernel void broken(__global float* x, __global float* y) { y[0] = nothing; }",
        shape=torch.empty_like,
        work=lambda x: 1,
    )
    with pytest.raises(NotImplementedError, match="failed to build"):
        broken(torch.ones(2, device="lazy")).cpu()
    caplog.clear()  # a compile that fails is the point here (`no_compiler_fails`)
    assert torch.ones(2, device="lazy").sum().item() == 2
