"""Rows that vectors do not divide: the last elements are computed one by one, and the vectors stay vectors."""

import pytest
import torch

import lazy_backend


@pytest.mark.parametrize(("width", "tail"), [(766, True), (768, False)])
def test_a_kernel_with_a_tail_is_marked(device, width, tail):
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    rows = torch.arange(9.0 * width, device=device).reshape(9, width)
    view = torch.nn.functional.pad(rows, (1, 1))[:, 1:-1]
    torch.lazy.synchronize()
    (window,) = lazy_backend.explain(lambda: view * 2 + rows).windows
    (kernel,) = window.kernels
    if "vload" not in kernel.source:
        pytest.skip("this device uses no vectors")
    assert ("WHOLE\n__kernel" in kernel.source) == tail
