"""The device module and torch.accelerator."""

import pytest
import torch
from torch import nn

from tests.integration.process import run_python


def test_module_is_registered():
    """`torch.lazy` is the device's module and is found by torch.get_device_module."""
    assert torch.get_device_module("lazy") is torch.lazy
    assert torch.lazy.is_available() and torch.lazy.device_count() >= 1
    assert torch._C._get_privateuse1_backend_name() == "lazy"


def test_accelerator_is_lazy():
    """`torch.accelerator` speaks of the lazy device."""
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("lazy")
    assert torch.accelerator.device_count() == torch.lazy.device_count()
    assert torch.accelerator.current_device_index() == torch.lazy.current_device() == 0
    torch.accelerator.synchronize()
    assert torch.float32 in torch.accelerator.get_device_capability("lazy")["supported_dtypes"]


def test_scripts_of_the_cpu_open_no_driver():
    """Training on the CPU counts devices (autograd and optimizers ask torch) and opens none; the device works after."""
    program = """
import torch
from lazy_backend import _C
def train(device):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3, device=device)).square().sum().backward()
        optimizer.step()
    return model.weight.detach().cpu()
expected = train("cpu")
assert torch.accelerator.is_available() and torch.lazy.device_count() and not _C.driver_opened()
torch.testing.assert_close(train("lazy"), expected)
assert _C.driver_opened()
"""
    run_python(program, {})


TWO_DEVICES = {"LAZY_DRIVER": "simgpu", "LAZY_SIM_SET": "devices=2"}


def test_devices_are_counted_while_another_thread_opens_one():
    """torch asks with the interpreter's lock, which a driver in Python waits for while it opens a device."""
    program = """
import threading, time
import torch
from device_sim.device import SimDriver
from lazy_backend import _C
torch.empty(1, device="lazy:0")
stream = torch.Stream("lazy:0")
began, found = threading.Event(), []
opened = SimDriver.open
def open(self, index):
    began.set()
    time.sleep(0.5)
    return opened(self, index)
SimDriver.open = open
thread = threading.Thread(target=lambda: found.append(_C.device_properties(1)))
thread.start()
assert began.wait(60)
with stream:
    pass
thread.join(60)
assert found, "the device was never opened"
"""
    run_python(program, TWO_DEVICES)


def test_current_device_is_per_thread():
    """set_device, device(), device_of() and torch.accelerator's forms act on the calling thread, to their end."""
    program = """
import threading, torch
assert torch.lazy.device_count() == 2 == torch.accelerator.device_count()
where = lambda: (torch.lazy.current_device(), torch.empty(1, device="lazy").device.index)
torch.lazy.set_device("lazy:1")
assert where() == (1, 1) and torch.accelerator.current_device_index() == 1
seen = []
thread = threading.Thread(target=lambda: seen.append(where()))
thread.start(), thread.join()
assert seen == [(0, 0)], seen
torch.accelerator.set_device_index(0)
assert where() == (0, 0)
with torch.lazy.device(1):
    assert where() == (1, 1)
    with torch.lazy.device_of(torch.empty(1, device="lazy:0")):
        assert where() == (0, 0)
    with torch.lazy.device_of(torch.empty(1)):  # not of this device: nothing changes
        assert where() == (1, 1)
with torch.accelerator.device_index(1):
    assert where() == (1, 1)
try:
    with torch.lazy.device("lazy:1"):
        raise KeyError
except KeyError:
    assert where() == (0, 0)
"""
    run_python(program, TWO_DEVICES)


def test_streams_generators_and_memory_of_two_devices():
    """Streams, events, generators and memory counters are their device's; one device's event orders another's work."""
    program = """
import torch
one = torch.Stream("lazy:1")
assert one.device.index == 1 and torch.accelerator.current_stream("lazy:1") != one
with one:
    assert torch.accelerator.current_stream("lazy:1") == one and torch.lazy.current_device() == 1
    y = torch.full((1000,), 2.0, device="lazy")
    done = one.record_event()
assert torch.lazy.current_device() == 0 and y.device.index == 1
torch.lazy.current_stream("lazy:0").wait_event(done)
assert (y.to("lazy:0") + 1).sum().item() == 3000
try:
    done.record(torch.lazy.current_stream("lazy:0"))
except RuntimeError as error:
    assert "lazy:1" in str(error), error
else:
    raise SystemExit("an event moved to another device")
torch.lazy.synchronize("lazy:1")
assert torch.lazy.memory_allocated("lazy:1") >= 4000
base = torch.lazy.memory_allocated("lazy:0")
del y
assert torch.lazy.memory_allocated("lazy:0") == base and torch.lazy.memory_allocated("lazy:1") < 4000
torch.manual_seed(3)
a, b = torch.rand(4, device="lazy:0").cpu(), torch.rand(4, device="lazy:1").cpu()
assert torch.equal(a, b), "torch.manual_seed seeds every device"
assert len(torch.lazy.get_rng_state_all()) == 2
torch.lazy.set_rng_state(torch.lazy.get_rng_state("lazy:1"), "lazy:0")
torch.rand(4, device="lazy:1")
states = torch.lazy.get_rng_state_all()
assert not torch.equal(*states)
with torch.random.fork_rng(devices=[0, 1], device_type="lazy"):
    torch.rand(4, device="lazy:0"), torch.rand(4, device="lazy:1")
assert all(map(torch.equal, states, torch.lazy.get_rng_state_all()))
"""
    run_python(program, TWO_DEVICES)


def test_capability_is_true():
    """Every dtype of get_device_capability is computed on the device, with the CPU's numbers and no fallback."""
    supported = torch.accelerator.get_device_capability("lazy")["supported_dtypes"]
    assert {torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool} <= set(supported)
    assert not {torch.float8_e4m3fn, torch.qint8} & set(supported)
    for dtype in supported:
        x = torch.tensor([1, 0, 3, 2]).to(dtype)
        torch.lazy.synchronize()
        torch.lazy.reset_stats()
        found = [t.cpu() for y in [x.to("lazy")] for t in (y.clone(), y * y, y == 3, y.view(2, 2).T, y.float())]
        assert torch.lazy.stats()["host_ops"] == 0, dtype
        torch.testing.assert_close(found, [x, x * x, x == 3, x.view(2, 2).T, x.float()])


def test_index_out_of_range():
    """A device that does not exist is an error that says how many there are."""
    with pytest.raises(RuntimeError, match="lazy:7 does not exist: the driver has"):
        torch.empty(1, device="lazy:7")
    with pytest.raises(ValueError, match="expected a lazy device, got cpu"):
        torch.lazy.synchronize("cpu")


def test_properties():
    """get_device_properties, get_device_name and get_device_capability describe the chip."""
    properties = torch.lazy.get_device_properties()
    assert properties.total_memory > 0 and properties.multi_processor_count >= 1
    assert torch.lazy.get_device_name() == properties.name != ""


def test_two_devices_and_copies_between_them():
    """Several devices: tensors, current device and copies from one to another."""
    program = """
import torch
assert torch.lazy.device_count() == 2
a = torch.arange(6.0, device="lazy:0")
b = (a * 2).to("lazy:1") + 1
with torch.lazy.device(1):
    assert torch.empty(1, device="lazy").device == torch.device("lazy:1")
    c = torch.ones(6, device="lazy")
assert torch.lazy.current_device() == 0 and b.device.index == 1
assert torch.equal((b + c).cpu(), torch.arange(6.0) * 2 + 2)
try:
    a + b
except RuntimeError as error:
    assert "same device" in str(error), error
else:
    raise SystemExit("mixing devices did not raise")
"""
    run_python(program, TWO_DEVICES)


# Calls of every ATen op that makes a tensor of a given device out of none; the test compares with torch's own list.
FACTORIES = {
    "_efficientzerotensor": "((2,),)", "arange": "(5,), (1, 5), (1, 5, 2)", "bartlett_window": "(5,), (5, False)",
    "blackman_window": "(5,), (5, False)", "empty": "((2,),)", "empty_permuted": "((2, 3), (1, 0))",
    "empty_strided": "((2,), (1,))", "eye": "(3,), (3, 2)", "full": "((2,), 7.0)",
    "hamming_window": "(5,), (5, False), (5, False, 0.5), (5, False, 0.5, 0.4)", "hann_window": "(5,), (5, False)",
    "kaiser_window": "(5,), (5, False), (5, False, 8.0)", "linspace": "(0, 1, 5),", "logspace": "(0, 1, 5),",
    "normal": "(0.0, 1.0, (2,)),", "ones": "((2,),)", "rand": "((2,),)", "randint": "(4, (2,)), (1, 4, (2,))",
    "randn": "((2,),)", "randperm": "(5,),", "range": "(1, 5), (1, 5, 2)", "scalar_tensor": "(3.0,),",
    "tensor": "(3.0,), ([1, 2],)", "as_tensor": "(3.0,), ([1, 2],)", "asarray": "(3.0,), ([1, 2],)",
    "tril_indices": "(3, 3),", "triu_indices": "(3, 3),", "zeros": "((2,),)", "fft.fftfreq": "(5,),",
    "fft.rfftfreq": "(5,),", "signal.windows.kaiser": "(5,),", "signal.windows.gaussian": "(5,),",
    "zeros_like": "(here,),", "ones_like": "(here,),", "full_like": "(here, 2.0),", "rand_like": "(here,),",
    "randn_like": "(here,),", "randint_like": "(here, 4),", "empty_like": "(here,),",
    "Tensor.new_zeros": "(here, (2,)),", "Tensor.new_tensor": "(here, [1.0, 2.0]),", "Tensor.to": "(here,),",
    "Tensor.new_full": "(here, (2,), 1),",
}  # fmt: skip
# Not of dense devices, of another library, a mapped file, or no tensor.
NO_FACTORIES = {
    "Generator", "_cudnn_init_dropout_state", "_empty_affine_quantized", "_make_dep_token", "from_file",
    "_sparse_compressed_tensor_with_dims", "_sparse_coo_tensor_with_dims", "sparse_coo_tensor",
}  # fmt: skip


def test_every_factory_keeps_to_the_device_that_is_named():
    """Every factory of torch makes its tensor on the device that it is told, whichever is current."""
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")]
    makers = {
        s.name.removeprefix("aten::").replace("fft_", "fft.")
        for s in schemas
        if any(a.name == "device" for a in s.arguments) and not any("Tensor" in str(a.type) for a in s.arguments)
    }
    assert makers - NO_FACTORIES <= FACTORIES.keys(), "a factory that this test does not know"
    program = f"""
import operator, torch
here = torch.ones(2, device="lazy:0")
assert torch.lazy.device_count() == 2 and torch.lazy.current_device() == 0
for name, calls in {FACTORIES!r}.items():
    for arguments in eval(f"({{calls}},)" if not calls.endswith(",") else f"({{calls}})"):
        made = operator.attrgetter(name)(torch)(*arguments, device="lazy:1")
        assert made.device == torch.device("lazy:1"), (name, arguments, made.device)
        assert name.startswith(("empty", "_eff")) or made.cpu().isfinite().all(), name
"""
    run_python(program, TWO_DEVICES | {"LAZY_FALLBACK": "silent"})


def test_factories_and_default_device():
    """Factories, torch.device contexts and set_default_device."""
    with torch.device("lazy"):
        assert torch.zeros(2).device == torch.device("lazy:0")
        assert nn.Linear(2, 2).weight.device.type == "lazy"
    torch.set_default_device("lazy")
    try:
        assert torch.arange(3).is_lazy
        assert torch.tensor([1, 2]).sum().item() == 3
    finally:
        torch.set_default_device(None)
    x = torch.ones(3, device="lazy")
    made = (torch.zeros_like(x), x.new_full((2,), 4.0), torch.full((2,), 1, device="lazy"), torch.eye(2, device="lazy"))
    assert all(t.is_lazy for t in made)


def test_generated_methods():
    """`Tensor.lazy()`, `Module.lazy()`, `is_lazy`, storage and packed-sequence methods."""
    x = torch.ones(2).lazy()
    assert x.is_lazy and not torch.ones(2).is_lazy
    assert next(nn.Linear(2, 2).lazy().parameters()).is_lazy
    assert x.untyped_storage().is_lazy and torch.ones(2).untyped_storage().lazy().is_lazy
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2)])
    assert packed.lazy().data.is_lazy


def test_module_to_keeps_parameters():
    """`Module.to` keeps Parameter objects: tied weights stay tied and an optimizer made before stays valid."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to("lazy")
    assert model[0].weight is weight is model[1].weight and weight.is_lazy
    model(torch.ones(2, 4, device="lazy")).sum().backward()
    before = weight.detach().cpu()
    optimizer.step()
    assert not torch.equal(before, weight.detach().cpu())
    weight.data = weight.data.to("cpu")
    assert weight.device.type == "cpu"


def test_fork_is_refused():
    """A forked child cannot use a device that was opened before, and is told what to do."""
    program = """
import os, torch
torch.ones(1, device="lazy").item()
if os.fork() == 0:
    try:
        torch.ones(1, device="lazy")
    except RuntimeError as error:
        os._exit(0 if "spawn" in str(error) and torch.lazy._is_in_bad_fork() else 1)
    os._exit(2)
assert os.wait()[1] == 0
"""
    run_python(program, {})


@pytest.mark.parametrize("driver", ["opencl", "simgpu"])
def test_a_script_may_end_while_the_device_works(driver, tmp_path):
    """What nobody waits for is dropped at the end of a script, and the process ends well."""
    program = """
import torch
x = torch.rand(8, 8, device="lazy")
for i in range(700):
    x = torch.tanh(x @ x) + 0.1 * i
torch.lazy.Event().record()
"""
    run_python(program, {"LAZY_DRIVER": driver, "LAZY_CACHE_DIR": str(tmp_path)})


@pytest.mark.parametrize("seconds", [0.3, 0.6, 0.9])
def test_a_script_may_end_while_kernels_are_built(seconds, tmp_path):
    """What is being built is left unbuilt, whenever that is, and nobody waits for it."""
    program = f"""
import time
import torch
x = torch.randn(64, 96).to("lazy")
for n in range(10):
    x = torch.tanh(x @ torch.randn(x.shape[1], 65 + 16 * n).to("lazy")).softmax(n % 2).cumsum(1)
torch.lazy.Event().record()
time.sleep({seconds})
"""
    run_python(program, {"LAZY_CACHE_DIR": str(tmp_path)})


def test_import_is_cheap():
    """`import torch` costs at most 100 ms more with the package installed, and imports no compiler and no driver."""
    program = """
import sys
import torch
loaded = [m for m in ("torch_mlir", "mlir", "pyopencl", "codegen", "torch._dynamo") if m in sys.modules]
assert not loaded, loaded
"""
    run_python(program, {})
    timed = """
import torch, time
start = time.process_time()  # of this process alone, whatever else the machine does
import lazy_backend
lazy_backend._autoload()
print(time.process_time() - start)
"""
    best = min(float(run_python(timed, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})) for _ in range(3))
    assert best < 0.1


@pytest.mark.parametrize("first", [
    "torch.ops.aten.kaiser_window.beta(5, True, 12.0, device='lazy').cpu()",
    "torch.ops.aten.tril_indices(3, 3, device='lazy').cpu()",
    "torch.lazy.memory_stats()",
    "torch.lazy.Event().record()",
    "torch.lazy.get_device_properties()",
    "torch.UntypedStorage(8, device='lazy')",
    "torch.Generator('lazy')",
])  # fmt: skip
def test_whatever_comes_first_opens_the_driver(first):
    """Anything that needs a device opens the driver, also after it was only counted."""
    program = f"import torch; torch.lazy.device_count(); {first}; assert torch.lazy.is_initialized()"
    run_python(program, {})
