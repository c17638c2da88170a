"""The OpenCL driver: which device is chosen, and that the C++ side keeps the contract in all of its memory modes."""

import ctypes as ct
import os
import subprocess
import sys
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from device_sim.chip import BadChip
from lazy_backend.driver import errors
from lazy_backend.drivers import doctor, icd, opencl
from lazy_backend.drivers.opencl import PREFERENCE, Candidate
from lazy_backend.porting.check import run


def candidate(platform, kind, name="chip", problem=""):
    rank = next(i for i, (k, p) in enumerate(PREFERENCE) if k == kind and p in platform.lower())
    return Candidate(SimpleNamespace(vendor=platform), platform, name, kind, rank, problem)


POCL = candidate("Portable Computing Language", "cpu")
INTEL = candidate("Intel(R) OpenCL", "cpu")
GPU = candidate("NVIDIA CUDA", "gpu")
FPGA = candidate("Intel(R) FPGA", "accelerator", problem="emulates an FPGA")


def chosen(*found, wanted=""):
    devices, _ = opencl.choose(sorted(found, key=lambda c: (bool(c.problem), c.rank)), wanted)
    return [c.platform for c in devices]


def test_a_platform_that_builds_nothing_here_is_left_for_the_next(monkeypatch):
    monkeypatch.setattr(opencl, "refusal", lambda c: "builds nothing here" if c is POCL else "")
    devices, _, found = opencl.chosen([POCL, INTEL._replace(rank=POCL.rank + 1)])
    assert [c.platform for c in devices] == [INTEL.platform]
    assert [c.problem for c in found] == ["builds nothing here", ""]
    devices, text, _ = opencl.chosen([POCL, INTEL], "portable")
    assert devices == [] and "builds nothing here" in text


def test_a_gpu_is_preferred_then_intel_then_pocl():
    assert chosen(POCL, INTEL, GPU, FPGA) == [GPU.platform]
    assert chosen(POCL, INTEL, FPGA) == [INTEL.platform]
    assert chosen(POCL, FPGA) == [POCL.platform]


def test_all_devices_of_the_chosen_kind_are_offered():
    assert chosen(GPU, GPU._replace(name="second"), INTEL) == [GPU.platform] * 2


def test_a_part_of_a_name_picks():
    assert chosen(POCL, INTEL, GPU, wanted="portable") == [POCL.platform]


def test_without_a_platform_the_text_says_what_to_install():
    devices, text = opencl.choose([])
    assert devices == [] and "pip install intel-opencl-rt" in text and "pocl-binary-distribution" in text


def test_without_a_fitting_device_the_text_lists_what_there_is():
    devices, text = opencl.choose([POCL, FPGA], "radeon")
    assert devices == [] and "LAZY_OPENCL_PLATFORM=radeon" in text and "emulates an FPGA" in text


def test_the_vendors_folder_lists_the_wheels_and_the_system(tmp_path, monkeypatch):
    system = tmp_path / "system"
    system.mkdir()
    (system / "some.icd").write_text("libsome.so.1\n")
    monkeypatch.setattr(icd, "SYSTEM_VENDORS", system)
    monkeypatch.setenv("LAZY_CACHE_DIR", str(tmp_path / "cache"))
    listed = {path.name: path.read_text().strip() for path in icd.vendors_folder().glob("*.icd")}
    assert listed["system-some.icd"] == "libsome.so.1"
    assert listed["intel-wheel.icd"].endswith("libintelocl.so")
    assert set(listed) == {f"{source.replace(' ', '-')}.icd" for source in icd.driver_libraries()}


def test_nvidias_driver_is_found_where_nothing_lists_it(tmp_path, monkeypatch):
    """As in a container: the device and the library are there, the .icd file is not."""
    monkeypatch.setattr(icd, "SYSTEM_VENDORS", tmp_path)
    monkeypatch.setattr(icd, "NVIDIA_DEVICE", tmp_path / "nvidiactl")
    assert "libnvidia-opencl.so.1" not in icd.driver_libraries().values()
    (tmp_path / "nvidiactl").touch()
    assert icd.driver_libraries()["nvidia driver"] == "libnvidia-opencl.so.1"
    (tmp_path / "nvidia.icd").write_text("/opt/libnvidia-opencl.so.1\n")
    found = icd.driver_libraries()
    assert found["system nvidia"] == "/opt/libnvidia-opencl.so.1" and "nvidia driver" not in found


def test_a_folder_that_the_user_named_is_respected(monkeypatch):
    monkeypatch.setenv("OCL_ICD_VENDORS", "/somewhere")
    icd.set_vendors()
    assert os.environ["OCL_ICD_VENDORS"] == "/somewhere"


def test_doctor_says_which_device_and_why():
    facts = doctor.facts()
    first = doctor.text(facts).splitlines()[0]
    assert first.startswith("lazy:0 is ") and "driver opencl" in first and "preferred of" in first
    assert facts["devices"][0]["language"] == "opencl" and facts["error"] == ""


def test_doctor_says_what_keeps_a_driver_from_opening(monkeypatch):
    def load(name):
        raise BadChip("no chip 'nosuch'")

    monkeypatch.setattr(doctor.discovery, "load", load)
    assert doctor.text(doctor.facts()).startswith("no device: no chip 'nosuch'")


def test_doctor_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("LAZY_DRIVER", "nothing")
    assert doctor.text(doctor.facts()).startswith("no device: no driver is called 'nothing'")


@pytest.mark.parametrize("memory", list(opencl.MEMORY))
def test_all_memory_modes_keep_the_contract(memory, tmp_path, monkeypatch):
    monkeypatch.setenv("LAZY_OPENCL_MEMORY", memory)
    report = run("opencl", [0, 1, 2, 3], tmp_path / "report.json", fresh=True)
    assert [(r.name, r.text) for r in report.results if r.status != "pass"] == []
    assert report.level == 3 and len(report.of(3)) > 10


KERNELS = """
import lazy_backend, torch
twice = lazy_backend.kernel("lazy_memory::twice", "(Tensor x) -> Tensor",
    "__kernel void twice(__global const float* x, __global float* y) {"
    "  int i = get_global_id(0); y[i] = 2 * x[i]; }",
    shape=torch.empty_like, work=lambda x: x.numel())
parts = [torch.randn(1000) for _ in range(4)]  # which lie in one allocation
there = [part.to("lazy") for part in parts]
for part, x in zip(parts, there):
    torch.testing.assert_close(torch.softmax(twice(x + 1), 0).cpu(), torch.softmax(2 * (part + 1), 0))
caps = __import__("lazy_backend.compiler").compiler.capabilities(0)
print(caps.host_visible, caps.address_args)
"""


@pytest.mark.parametrize(
    ("memory", "found"),
    [("", "True True"), ("coarse", "False False"), ("addresses", "False True"), ("buffers", "False False")],
)
def test_generated_kernels_and_the_users_own_run_with_every_memory(memory, found):
    """Where the driver takes numbers for memory, generated ones are given them, and call the user's with pointers."""
    env = {**os.environ, "LAZY_DRIVER": "opencl", "LAZY_OPENCL_AS": "", "LAZY_OPENCL_MEMORY": memory}
    done = subprocess.run([sys.executable, "-c", KERNELS], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found


OFFSETS = """
import numpy as np
from lazy_backend.driver.base import Buffer
from lazy_backend.driver.errors import InvalidArgument
from lazy_backend.porting.bench import Bench
bench = Bench("opencl")
kernel = bench.kernel("__kernel void one(__global int* x) { x[0] = 1; }", "one")
mem = bench.upload(np.zeros(1024, np.int32))
try:
    bench.device.launch(bench.queue, kernel, (1, 1, 1), (1, 1, 1), [Buffer(mem, bench.caps.mem_alignment)])
except InvalidArgument as error:
    print(error)
bench.device.launch(bench.queue, kernel, (1, 1, 1), (1, 1, 1), [Buffer(mem)])
print(bench.get(mem, 2, np.int32).tolist())
"""


def test_a_buffer_from_an_offset_on_is_an_address_where_kernels_take_these():
    """NVIDIA's driver dies of sub-buffers. The message says what to give it, and the next launch runs."""
    env = {**os.environ, "LAZY_OPENCL_AS": "", "LAZY_OPENCL_MEMORY": "addresses"}
    done = subprocess.run([sys.executable, "-c", OFFSETS], env=env, capture_output=True, text=True, check=True)
    refused, result = done.stdout.strip().splitlines()
    assert "kernel argument 0" in refused and "LAZY_ARG_ADDRESS" in refused
    assert result == "[1, 0]"


SORTS = """
import torch
x = torch.stack([torch.randperm(200) for _ in range(3)]).float()
y = x.to("lazy")
places = [(k, largest) for k in (1, 7, 64, 100, 200) for largest in (True, False)]
made = [y.topk(k, largest=largest) for k, largest in places]
for (k, largest), (values, at) in zip(places, made):
    want = x.topk(k, largest=largest)
    assert torch.equal(values.cpu(), want.values) and torch.equal(at.cpu(), want.indices), (k, largest)
"""


def test_kernels_of_one_program_are_not_mixed_up(tmp_path):
    """Merges of sorted runs, for sizes that vary and for one size, up and down, given numbers (see GLOBAL_ID)."""
    env = {**os.environ, "LAZY_OPENCL_AS": "gpu", "LAZY_OPENCL_MEMORY": "addresses", "LAZY_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", SORTS], env=env | {"LAZY_DRIVER": "opencl"}, check=True, timeout=300)


ROWS = """
import torch
base = torch.randn(8 * 1032 + 8)
there = base.to("lazy")
for dtype in (torch.float32, torch.float16):
    x, y = base.to(dtype), there.to(dtype)
    for start in (0, 1, 2, 4, 8):
        for stride in (1024, 1026, 1028):
            rows, same = (t.as_strided((8, 1024), (stride, 1), start) for t in (x, y))
            made = [same.float().softmax(1).to(dtype), torch.nn.functional.layer_norm(same, (1024,))]
            want = [rows.float().softmax(1).to(dtype), torch.nn.functional.layer_norm(rows, (1024,))]
            for a, b in zip(made, want):
                torch.testing.assert_close(a.cpu(), b, msg=str((dtype, start, stride)))
            room, other = torch.zeros(8 * 1024 + 8, dtype=dtype), torch.zeros(8 * 1024 + 8, dtype=dtype, device="lazy")
            for t, r in ((room, rows), (other, same)):
                t[start : start + 8 * 1024].view(8, 1024).copy_(torch.nn.functional.layer_norm(r, (1024,)))
            torch.testing.assert_close(other.cpu(), room, msg=str((dtype, start, stride)))
"""


def test_rows_that_begin_anywhere(tmp_path):
    """Whether vectors are aligned is asked once, of addresses and of where in their memory rows begin."""
    env = {**os.environ, "LAZY_OPENCL_AS": "gpu", "LAZY_OPENCL_MEMORY": "addresses", "LAZY_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", ROWS], env=env | {"LAZY_DRIVER": "opencl"}, check=True, timeout=300)


@pytest.fixture(scope="module")
def device():
    from lazy_backend.driver import discovery

    return discovery.load("opencl").open().open(0)


def test_a_build_error_holds_the_compilers_words(device):
    with pytest.raises(errors.BuildFailed, match="undeclared"):
        device.program_load(b"__kernel void k(__global float *x) { x[0] = undeclared; }", False, "")


def test_a_program_may_call_what_the_first_build_leaves_away(device):
    """Intel's functions of subgroups are in a header that generated kernels go without."""
    if not device.properties().vendor.startswith("Intel"):
        pytest.skip("another vendor's")
    device.program_load(b"__kernel void f(__global float *a) { a[0] = sub_group_reduce_add(a[0]); }", False, "")


def test_a_broken_binary_is_refused(device):
    with pytest.raises(errors.BuildFailed):
        device.program_load(b"no binary", True, "")


def test_capabilities_of_a_cpu(device):
    caps = device.properties().complete()
    if not caps.is_cpu:
        pytest.skip("a GPU was found")
    assert caps.host_visible and caps.vector_bytes in (16, 32, 64) and caps.mem_alignment == 64
    assert caps.cache_bytes >= 1 << 17 and caps.has_f64


def test_host_memory_of_an_allocation_is_shared(device):
    mem, queue = device.alloc(4096), device.queue_create()
    data = np.arange(1024, dtype=np.float32)
    device.copy_h2d(queue, mem, 0, data.ctypes.data, 4096, True)
    address = device.host_pointer(mem)
    assert (np.ctypeslib.as_array((ct.c_float * 1024).from_address(address)) == data).all()


def test_a_cpu_says_what_a_gpu_would():
    """LAZY_OPENCL_AS=gpu: geometry and memory of a GPU, and the results of one."""
    script = (
        "import torch\n"
        "caps = torch.lazy.get_device_properties().capabilities\n"
        "print(caps['is_cpu'], caps['host_visible'], caps['subgroup_size'], caps['vector_bytes'], caps['name'][-8:])\n"
        "a, b = torch.randint(-9, 9, (130, 70)).float(), torch.randint(-9, 9, (70, 90)).float()\n"
        "print(((a.to('lazy') @ b.to('lazy')).cpu() == a @ b).all().item())\n"
    )
    env = os.environ | {"LAZY_OPENCL_AS": "gpu"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False False 32 4 as a GPU", "True"]


SHORT = """
import os, threading, torch
x = torch.arange(64.0, device="lazy")
for _ in range(200):
    assert (x * 2).sum().item() == 4032

def ticks():
    task = "/proc/self/task"
    fields = {t: open(f"{task}/{t}/stat").read().rsplit(")", 1)[1].split() for t in os.listdir(task)}
    return {int(t): int(f[11]) + int(f[12]) for t, f in fields.items()}

before, me = ticks(), threading.get_native_id()
while ticks()[me] - before[me] < 50:
    for _ in range(200):
        assert (x * 2).sum().item() == 4032
after = ticks()
print(after[me] - before[me], sum(after[t] - before.get(t, 0) for t in after if t != me))
"""


def test_short_kernels_run_on_the_thread_that_waits_for_them(device):
    """the runtime's threads sleep meanwhile: they would spin beside it as long as it takes"""
    if not device.properties().vendor.startswith("Intel"):
        pytest.skip("Intel's extension: cl_intel_exec_by_local_thread")
    script = subprocess.run([sys.executable, "-c", SHORT], capture_output=True, text=True, timeout=120)
    mine, others = map(int, script.stdout.split())
    assert others * 4 < mine, script.stderr


def test_functions_of_the_host_run_side_by_side_on_the_threads_that_run_kernels(device):
    """each once, and all have ended when the call returns"""
    if not (device.properties().vendor.startswith("Intel") and device.properties().is_cpu):
        pytest.skip("only where threads spin between kernels")
    units = device.properties().compute_units
    queue, ran = device.queue_create(), []
    meeting = threading.Barrier(min(2, units), timeout=60)

    def task(number):
        meeting.wait()  # returns where as many run at once
        ran.append((number, threading.get_native_id()))

    for turn in range(3):
        device.run_tasks(queue, [partial(task, turn * meeting.parties + i) for i in range(meeting.parties)])
    assert sorted(number for number, _ in ran) == list(range(3 * meeting.parties))
    assert len({thread for _, thread in ran}) <= units
    device.run_tasks(queue, [])
