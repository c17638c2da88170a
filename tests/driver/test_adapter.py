"""A Python driver through its C table and back is the same driver."""

import ctypes as ct
from typing import ClassVar

import numpy as np
import pytest

from lazy_backend.driver import abi, adapter, errors
from lazy_backend.driver.base import Buffer, Device, Driver, Local, Scalar, Tensor
from lazy_backend.driver.capabilities import Capabilities
from lazy_backend.driver.native import NativeDriver, read_table


class Recorder(Device):
    """Writes down what it is asked, and keeps memory in arrays."""

    calls: ClassVar[list] = []

    def properties(self):
        return Capabilities(level=2, name="recorder", language="c")

    def alloc(self, nbytes):
        if nbytes > 1 << 20:
            raise errors.OutOfMemory(f"{nbytes} bytes are too many")
        return np.zeros(nbytes, np.uint8)

    def free(self, mem): ...
    def queue_create(self):
        return "queue"

    def queue_destroy(self, queue): ...
    def copy_h2d(self, queue, dst, dst_offset, src, nbytes, blocking):
        ct.memmove(dst.ctypes.data + dst_offset, src, nbytes)

    def copy_d2h(self, queue, dst, src, src_offset, nbytes, blocking):
        ct.memmove(dst, src.ctypes.data + src_offset, nbytes)

    def copy_d2d(self, queue, dst, dst_offset, src, src_offset, nbytes):
        raise ZeroDivisionError("a bug in the driver")

    def event_record(self, queue):
        return {"asked": 0}

    def event_query(self, event):
        event["asked"] += 1
        return event["asked"] > 2

    def event_wait(self, event): ...
    def event_destroy(self, event): ...
    def synchronize(self, queue): ...
    def launch(self, queue, kernel, global_size, local_size, args):
        self.calls.append((queue, kernel, global_size, local_size, args))

    def kernel_create(self, program, name):
        return f"{program}.{name}"

    def program_load(self, source, is_binary, options):
        return f"{source.decode()} {is_binary} {options}"

    def program_binary(self, program):
        return b"built"

    def core_op(self, queue, name, outputs, inputs, attrs):
        self.calls.append((name, outputs, inputs, attrs))

    def run_tasks(self, queue, tasks):
        for task in reversed(tasks):
            task()


class RecorderDriver(Driver):
    name = "recorder"
    device_class = Recorder


@pytest.fixture
def device():
    Recorder.calls.clear()
    return NativeDriver(adapter.table(RecorderDriver())).open(0)


def test_properties_and_memory(device):
    assert device.properties().name == "recorder"
    queue, mem = device.queue_create(), device.alloc(16)
    data, out = np.arange(8, dtype=np.uint8), np.zeros(4, np.uint8)
    device.copy_h2d(queue, mem, 8, data.ctypes.data, 8, True)
    device.copy_d2h(queue, out.ctypes.data, mem, 10, 4, True)
    assert out.tolist() == [2, 3, 4, 5]


def test_kernel_arguments_of_every_kind(device):
    queue, mem = device.queue_create(), device.alloc(16)
    kernel = device.kernel_create(device.program_load(b"text", False, "-O1"), "k")
    device.launch(queue, kernel, (8, 2, 1), (4, 1, 1), [Buffer(mem, 64), Scalar(b"\x01\x02\x03\x04"), Local(128)])
    ((_, named, global_size, local_size, (buffer, scalar, local)),) = Recorder.calls
    assert (named, global_size, local_size) == ("text False -O1.k", (8, 2, 1), (4, 1, 1))
    assert (buffer.offset, scalar, local) == (64, Scalar(b"\x01\x02\x03\x04"), Local(128))
    assert buffer.mem.nbytes == 16


def test_core_op_tensors_and_attributes(device):
    mem = device.alloc(64)
    view = Tensor(mem, 4, 8, (2, 3), (3, 1))
    device.core_op(device.queue_create(), "sum", [Tensor(mem, 0, 8, (2,), (1,))], [view], {"dims": [1]})
    ((name, (out,), (x,), attrs),) = Recorder.calls
    assert (name, attrs) == ("sum", {"dims": [1]})
    assert (x.offset, x.dtype, x.sizes, x.strides) == (4, 8, (2, 3), (3, 1)) and out.sizes == (2,)


def test_the_hosts_functions_come_as_callables(device):
    ran = []
    device.run_tasks(device.queue_create(), [lambda: ran.append("first"), lambda: ran.append("second")])
    assert ran == ["second", "first"]


def test_each_status_comes_back_as_its_exception_with_the_drivers_text(device):
    with pytest.raises(errors.OutOfMemory, match="2097152 bytes are too many"):
        device.alloc(2 << 20)


def test_a_bug_in_the_driver_is_an_error_not_a_crash(device):
    mem = device.alloc(8)
    with pytest.raises(errors.InvalidArgument, match="a bug in the driver"):
        device.copy_d2d(device.queue_create(), mem, 0, mem, 4, 4)


def test_a_binary_is_not_written_past_the_hosts_room(device):
    program = device.program_load(b"text", False, "")
    assert device.program_binary(program) == b"built"
    room, nbytes = ct.create_string_buffer(b"....."), ct.c_uint64(3)
    with pytest.raises(errors.InvalidArgument, match="5 bytes needed, room for 3"):
        device._call("program_binary", program, room, ct.byref(nbytes))
    assert room.raw == b".....\0"


def test_event_query_is_a_bool(device):
    event = device.event_record(device.queue_create())
    assert [device.event_query(event) for _ in range(3)] == [False, False, True]


def test_a_freed_handle_is_a_memory_fault_and_no_address(device):
    mem = device.alloc(8)
    assert mem.value >> 48 == 0xDEAD, "a handle must not look like an address of the host"
    device.free(mem)
    with pytest.raises(errors.MemoryFault, match="after it was freed"):
        device.free(mem)
    with pytest.raises(errors.InvalidArgument, match="no such handle"):
        device.free(ct.c_void_p(1234))


def test_methods_that_are_not_written_are_null_entries(device):
    assert not device.offers("host_pointer") and device.offers("launch")
    with pytest.raises(errors.Unsupported, match="no entry host_pointer"):
        device.host_pointer(device.alloc(8))


def test_a_table_without_a_required_entry_is_refused():
    class Half(Device):
        def properties(self):
            return Capabilities(language="c")

    class HalfDriver(Driver):
        name, device_class = "half", Half

    with pytest.raises(errors.Unsupported, match="lacks the entries alloc, free"):
        NativeDriver(adapter.table(HalfDriver()))


def test_another_major_version_is_refused():
    api = abi.DriverApi(ct.sizeof(abi.DriverApi), abi.MAJOR + 1, 0)
    with pytest.raises(errors.Unsupported, match=f"contract version {abi.MAJOR + 1}, this host serves {abi.MAJOR}"):
        read_table(ct.addressof(api))
