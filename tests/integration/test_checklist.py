"""What torch itself expects of an accelerator outside its tree"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.integration.process import run_python

# A call of each on `x`, which is [[0, 1, 2], [3, 4, 5]] on the device, and what it gives.
MINIMAL = {
    "empty.memory_format": (lambda x, op: op([2], device=x.device).fill_(7), [7, 7]),
    "empty_strided": (lambda x, op: op([2, 2], [1, 2], device=x.device).copy_(x[:, :2]), [[0, 1], [3, 4]]),
    "as_strided": (lambda x, op: op(x, [2, 2], [1, 2], 1), [[1, 3], [2, 4]]),
    "view": (lambda x, op: op(x, [3, 2]), [[0, 1], [2, 3], [4, 5]]),
    "_reshape_alias": (lambda x, op: op(x, [3, 2], [2, 1]), [[0, 1], [2, 3], [4, 5]]),
    "resize_": (lambda x, op: op(x, [1, 3]), [[0, 1, 2]]),
    "_copy_from": (lambda x, op: op(x.T, torch.empty(3, 2)), [[0, 3], [1, 4], [2, 5]]),
    "_copy_from_and_resize": (lambda x, op: op(x, torch.empty(0)), [[0, 1, 2], [3, 4, 5]]),
    "_local_scalar_dense": (lambda x, op: torch.tensor(op(x[1, 2])), 5),
    "set_.source_Tensor": (lambda x, op: op(x.new_empty(0), x), [[0, 1, 2], [3, 4, 5]]),
    "set_.source_Storage": (lambda x, op: op(x.new_empty(0), x.untyped_storage()), [0, 1, 2, 3, 4, 5]),
    "set_.source_Storage_storage_offset": (
        lambda x, op: op(x.new_empty(0), x.untyped_storage(), 1, [2, 2], [3, 1]),
        [[1, 2], [4, 5]],
    ),
}


@pytest.mark.parametrize("name", MINIMAL)
def test_minimal_ops(name):
    """The twelve ops without which there is no tensor: kernels of the device's own, none on the host."""
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "PrivateUse1")
    base, _, overload = name.partition(".")
    call, expected = MINIMAL[name]
    x = torch.arange(6.0, device="lazy").view(2, 3)
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    found = call(x, getattr(getattr(torch.ops.aten, base), overload or "default"))
    assert found.tolist() == expected and torch.lazy.stats()["host_ops"] == 0
    if name in ("as_strided", "view", "_reshape_alias", "set_.source_Tensor", "set_.source_Storage"):
        x.zero_()
        assert found.count_nonzero().item() == 0, "a view"


def test_fallback():
    """An op without a lowering runs on the CPU, is counted, and is right; views and in-place faces too."""
    x = torch.tensor([[2.0, 1.0], [1.0, 2.0]], device="lazy")
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    values, vectors = torch.linalg.eig(x + 0)
    assert sorted(values.real.tolist()) == pytest.approx([1, 3])
    torch.testing.assert_close((vectors @ torch.diag(values) @ vectors.inverse()).real.cpu(), x.cpu())
    assert torch.lazy.stats()["host_ops"] >= 1

    def gradient(device: str) -> torch.Tensor:
        y = x.detach().to(device).requires_grad_()
        torch.linalg.eig(y * y)[0].real.prod().backward()
        return y.grad.cpu()

    torch.testing.assert_close(gradient("lazy"), gradient("cpu"))


def test_fallback_may_be_forbidden():
    """LAZY_FALLBACK=error raises NotImplementedError that names the op and the Python line; warn is a UserWarning."""
    program = """
import warnings, torch
x = torch.eye(2, device="lazy")
try:
    torch.linalg.eig(x)[0].cpu()
except NotImplementedError as error:
    assert "linalg_eig" in str(error) and "<string>:5" in str(error), error
else:
    raise SystemExit("nothing was raised")
"""
    run_python(program, {"LAZY_FALLBACK": "error"})
    program = """
import warnings, torch
x = torch.eye(2, device="lazy")
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for _ in range(2):
        torch.linalg.eig(x)[0].cpu()
assert sum("linalg_eig" in str(w.message) for w in seen) == 1, seen
"""
    run_python(program, {"LAZY_FALLBACK": "warn"})


UNSUPPORTED = {
    "sparse": lambda x: x.to_sparse(),
    "sparse csr": lambda x: x.to_sparse_csr(),
    "sparse of indices": lambda x: torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2), device=x.device),
    "sparse gradient": lambda x: (
        nn.functional.embedding(torch.tensor([0], device=x.device), x.requires_grad_(), sparse=True).sum().backward()
    ),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1]], device=x.device) * 2,
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_layouts_that_do_not_exist(name):
    """Sparse, nested and quantized tensors are refused with a sentence that says what to do, at the call."""
    x = torch.ones(2, 2, device="lazy")
    with pytest.raises(NotImplementedError, match=rf'device "lazy" has no {name.split()[0]} tensors.*\.cpu\(\)'):
        UNSUPPORTED[name](x)
    assert (torch.ones(2, device="lazy") + 1).tolist() == [2, 2]


def _stream_of(module: Any) -> bool:
    other = module.Stream()
    module.set_stream(other)
    try:
        with module.stream(module.default_stream()):
            assert module.current_stream() == module.default_stream()
        return module.current_stream() == other
    finally:
        module.set_stream(module.default_stream())


def _reseeded(module: Any, reseed: Callable[[], None]) -> bool:
    reseed()
    first, seed = torch.rand(4, device="lazy"), module.initial_seed()
    reseed()
    return module.initial_seed() != seed and not torch.equal(torch.rand(4, device="lazy").cpu(), first.cpu())


def _restored(module: Any, get: Callable, set_: Callable) -> bool:
    state = get()
    first = torch.rand(4, device="lazy").cpu()
    set_(state)
    return torch.equal(torch.rand(4, device="lazy").cpu(), first)


# What torch, Dynamo, checkpointing and FSDP look up in a device's module, and a question whose answer is yes.
MODULE: dict[str, Callable[[Any], bool]] = {
    "amp": lambda m: m.get_amp_supported_dtype() == [torch.bfloat16, torch.float16] and m.amp is not None,
    "current_device, set_device, device_count": lambda m: m.set_device(0) is None and m.current_device() == 0,
    "current_stream, default_stream, set_stream, stream, Stream": _stream_of,
    "Event": lambda m: m.Event(enable_timing=True).query(),
    "synchronize": lambda m: m.synchronize() is None and m.synchronize("lazy:0") is None,
    "default_generators": lambda m: m.default_generators[0].device == torch.device("lazy:0"),
    "manual_seed, initial_seed": lambda m: m.manual_seed(7) is None and m.initial_seed() == 7,
    "manual_seed_all": lambda m: m.manual_seed_all(8) is None and m.initial_seed() == 8,
    "seed": lambda m: _reseeded(m, m.seed),
    "seed_all": lambda m: _reseeded(m, m.seed_all),
    "get_rng_state, set_rng_state": lambda m: _restored(m, m.get_rng_state, m.set_rng_state),
    "get_rng_state_all, set_rng_state_all": lambda m: _restored(m, m.get_rng_state_all, m.set_rng_state_all),
    "get_device_name, get_device_properties": lambda m: m.get_device_name() == m.get_device_properties(0).name,
    "get_device_capability": lambda m: m.get_device_capability() is not None,
    "memory_allocated, max_memory_allocated": lambda m: 0 <= m.memory_allocated() <= m.max_memory_allocated(),
    "memory_reserved, max_memory_reserved": lambda m: 0 < m.memory_reserved() <= m.max_memory_reserved(),
    "memory_stats": lambda m: m.memory_stats()["allocated_bytes.all.current"] == m.memory_allocated(),
    "memory_summary, memory_snapshot": lambda m: "peak" in m.memory_summary() and isinstance(m.memory_snapshot(), list),
    "reset_peak_memory_stats": lambda m: m.reset_peak_memory_stats()
    or m.max_memory_allocated() == m.memory_allocated(),
    "reset_accumulated_memory_stats": lambda m: m.reset_accumulated_memory_stats()
    or m.memory_stats()["allocation.all.freed"] == 0,
    "get_memory_info, mem_get_info": lambda m: m.get_memory_info() == m.mem_get_info(),
    "empty_cache, empty_host_cache": lambda m: m.empty_cache() is None and m.empty_host_cache() is None,
    "is_available, is_initialized": lambda m: m.is_available() and m.is_initialized() and m._initialized,
    "init, _lazy_init": lambda m: m.init() is None and m._lazy_init() is None,
    "_is_in_bad_fork": lambda m: not m._is_in_bad_fork(),
}  # fmt: skip


@pytest.mark.parametrize("names", MODULE)
def test_module_names(names):
    """`torch.lazy` has every name that torch, Dynamo, checkpointing and FSDP look up, and each does what it says."""
    torch.ones(1, device="lazy").cpu()
    assert all(hasattr(torch.lazy, name) for name in names.split(", "))
    assert MODULE[names](torch.lazy)


def test_streams_have_priorities_handles_and_queries():
    """The device guard: a stream's priority and query, a blocking event; torch has no IPC handles for it."""
    torch.lazy.synchronize()
    stream = torch.Stream("lazy", priority=-1)
    assert stream.query() and stream.device.type == "lazy"
    with stream:
        y = torch.ones(4, device="lazy") * 2
    stream.synchronize()
    event = torch.Event("lazy", blocking=True)
    event.record(stream)
    event.wait(stream)
    event.synchronize()
    assert y.tolist() == [2, 2, 2, 2]
    with pytest.raises(NotImplementedError, match="ipc is not supported"):
        torch.Event("lazy", interprocess=True).ipc_handle()


def test_stubs(agrees):
    """What torch serves by kernels outside the dispatcher: Kaiser windows, a padded batch in a Transformer."""
    agrees(lambda device: [torch.kaiser_window(7, device=device), torch.kaiser_window(6, False, 3.0, device=device)])

    def padded(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.TransformerEncoder(layer, 2).to(device).eval()
        mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=device)
        with torch.no_grad():  # torch makes a nested tensor of it on devices that have them
            return model(torch.linspace(-1, 1, 80).view(2, 5, 8).to(device), src_key_padding_mask=mask)[:, :3]

    agrees(padded, rtol=1e-4, atol=1e-5)


def test_deterministic_mode(agrees):
    """torch.use_deterministic_algorithms fills fresh memory, as torch documents, and sums in a fixed order."""

    def program(device: str) -> list[torch.Tensor]:
        torch.use_deterministic_algorithms(True)
        try:
            fresh = [torch.empty(3, dtype=dtype, device=device) for dtype in (torch.float32, torch.int64, torch.bool)]
            total = torch.zeros(3, device=device).index_add_(
                0, torch.tensor([0, 0, 2], device=device), torch.tensor([1e8, 1.0, 3.0], device=device)
            )
        finally:
            torch.use_deterministic_algorithms(False)
        return [*fresh, total]

    agrees(program)


def test_location_tags():
    """torch.serialization knows the device: storages are tagged lazy:0 and restored by tag, callable or mapping."""
    import io

    x = torch.arange(3.0, device="lazy")
    assert torch.serialization.location_tag(x.untyped_storage()) == "lazy:0"
    buffer = io.BytesIO()
    torch.save(x, buffer)
    for location in ("lazy", "lazy:0", {"lazy:0": "lazy:0"}, lambda storage, tag: storage.lazy(), torch.device("lazy")):
        buffer.seek(0)
        assert torch.load(buffer, map_location=location).is_lazy


def test_autoload_may_be_switched_off():
    """TORCH_DEVICE_BACKEND_AUTOLOAD=0 leaves torch alone; importing the package by hand brings the device."""
    program = """
import torch
assert not hasattr(torch, "lazy")
import lazy_backend
lazy_backend._autoload()
assert torch.ones(2, device="lazy").sum().item() == 2
"""
    run_python(program, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})


def test_logs():
    """TORCH_LOGS="+lazy" shows the package's own log, as for torch's components; without it there is none."""
    program = """
import torch, logging
logging.getLogger("lazy_backend.compile").info("a line of the log")
"""
    for setting, shown in ({"TORCH_LOGS": "+lazy"}, True), ({}, False):
        done = subprocess.run([sys.executable, "-c", program], env=os.environ | setting, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert ("a line of the log" in done.stderr) == shown, done.stderr


def test_a_driver_that_does_not_open():
    """Without a driver `import torch` works, is_available() is False, and the first tensor says what was tried."""
    program = """
import torch
assert not torch.lazy.is_available() and torch.lazy.device_count() == 0 and torch.ones(2).sum() == 2
try:
    torch.ones(1, device="lazy")
except RuntimeError as error:
    assert "nosuchdriver" in str(error), error
else:
    raise SystemExit("nothing was raised")
"""
    run_python(program, {"LAZY_DRIVER": "nosuchdriver"})


def test_device_interface():
    """Dynamo's DeviceInterface of the device answers what it is asked while tracing."""
    from torch._dynamo.device_interface import get_interface_for_device

    import lazy_backend.dynamo

    lazy_backend.dynamo.register()
    found = get_interface_for_device("lazy")
    assert found.is_available() and found.device_count() >= 1 and found.current_device() == 0
    assert found.maybe_exchange_device(0) == 0 == found.exchange_device(0)
    assert found.get_raw_stream(0) == torch.lazy.current_stream().stream_id
    assert found.get_compute_capability() == torch.lazy.get_device_name()
    assert found.is_bf16_supported() and found.is_dtype_supported(torch.bfloat16, including_emulation=True)
    assert found.memory_allocated() >= 0 and found.Worker.current_device() == 0
    found.synchronize()


def test_every_optimizer_face():
    """foreach, fused and capturable optimizers, which torch assumes of a device like this one, step as on the CPU."""

    def step(device: str, **options: bool) -> torch.Tensor:
        weight = torch.linspace(-1, 1, 6, device=device).requires_grad_()
        optimizer = torch.optim.AdamW([weight], lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            weight.pow(4).sum().backward()
            optimizer.step()
        return weight.detach().cpu()

    expected = step("cpu")
    for options in ({"foreach": True}, {"foreach": False}, {"fused": True}, {"capturable": True}):
        torch.testing.assert_close(step("lazy", **options), expected)


def test_fsdp_gradient_scaler():
    """FSDP's sharded gradient scaler accepts the device."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    with one_rank():
        scaler = ShardedGradScaler(device="lazy", init_scale=4.0)
        weight = torch.ones(2, device="lazy", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [0, 0]


@contextlib.contextmanager
def one_rank():
    """A process group of this process alone."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    torch.distributed.init_process_group("lazy", init_method=f"tcp://localhost:{port}", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def test_distributed_checkpoint(tmp_path):
    """torch.distributed.checkpoint writes and reads a state dict of lazy tensors."""
    from torch.distributed import checkpoint

    state = {"weight": torch.arange(6.0, device="lazy").view(2, 3), "step": 3}
    with one_rank():
        checkpoint.save(state, checkpoint_id=str(tmp_path / "saved"))
        loaded = {"weight": torch.zeros(2, 3, device="lazy"), "step": 0}
        checkpoint.load(loaded, checkpoint_id=str(tmp_path / "saved"))
    assert (
        loaded["weight"].is_lazy and torch.equal(loaded["weight"].cpu(), state["weight"].cpu()) and loaded["step"] == 3
    )


def test_rnn():
    """RNN, LSTM and GRU, also over packed sequences, give eager's outputs and gradients."""

    def run(device: str, kind: type) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = kind(3, 4, num_layers=2, bidirectional=True).to(device)
        x = torch.linspace(-1, 1, 30).view(5, 2, 3).to(device).requires_grad_()
        y, _ = model(nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3])))
        padded, lengths = nn.utils.rnn.pad_packed_sequence(y)
        padded.square().sum().backward()
        return [t.detach().cpu() for t in (padded, lengths, x.grad, *(p.grad for p in model.parameters()))]

    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        torch.testing.assert_close(run("lazy", kind), run("cpu", kind), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["plain", "causal", "mask", "grouped"])
def test_sdpa(case):
    """scaled_dot_product_attention, forward and backward: plain, causal, with a mask, with grouped heads."""

    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        heads = 2 if case == "grouped" else 4
        q, k, v = (torch.randn(2, h, 6, 8).to(device).requires_grad_() for h in (4, heads, heads))
        options = {
            "plain": {},
            "causal": {"is_causal": True},
            "mask": {"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril().to(device)},
            "grouped": {"enable_gqa": True},
        }[case]
        y = nn.functional.scaled_dot_product_attention(q, k, v, **options)
        y.square().sum().backward()
        return [t.detach().cpu() for t in (y, q.grad, k.grad, v.grad)]

    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    found = run("lazy")
    assert torch.lazy.stats()["host_ops"] == 0
    torch.testing.assert_close(found, run("cpu"), rtol=1e-4, atol=1e-5)


def test_torch_s_own_device_tests():
    """torch.testing's instantiate_device_type_tests makes and runs tests for the device (PrivateUse1TestBase)."""
    program = """
import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests, onlyAccelerator
from torch.testing._internal.common_utils import TestCase, run_tests

class TestAdd(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_add(self, device, dtype):
        assert device == "lazy:0", device
        x = torch.ones(3, device=device, dtype=dtype)
        self.assertEqual(x + x, torch.full((3,), 2, device=device, dtype=dtype))

instantiate_device_type_tests(TestAdd, globals(), only_for="lazy")
made = {name for name in dir(TestAddPRIVATEUSE1) if name.startswith("test_add")}
assert made == {"test_add_lazy_float32", "test_add_lazy_int64"}, made
run_tests()
"""
    run_python(program, {"CI": ""})  # where CI is set, torch's run_tests wants a package for reports
