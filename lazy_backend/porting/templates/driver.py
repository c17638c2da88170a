"""The driver of __NAME__. Each stub says what to write; lazy_backend.driver.base says the rules.

`python -m lazy_backend port check __NAME__` says what works and what is next.
"""

from lazy_backend.driver.base import Device, Driver
from lazy_backend.driver.capabilities import Capabilities
from lazy_backend.driver.errors import Unsupported


def stub(text):
    """A method that is still to be written."""

    def method(self, *args):
        raise Unsupported(f"write {text}")

    return method


class Chip(Device):
    # [device]
    def properties(self):
        # zeros are unknown: cautious defaults are taken
        return Capabilities(level=__LEVEL__, name="__NAME__", language="__LANGUAGE__", global_memory_bytes=1 << 30)

    # [device]

    # [memory]
    alloc = stub("alloc(nbytes): device memory, aligned to mem_alignment; any object")
    free = stub("free(mem): give it back")
    # [memory]

    # [queue]
    queue_create = stub("queue_create(): an in-order queue; any object")
    queue_destroy = stub("queue_destroy(queue)")
    copy_h2d = stub("copy_h2d(queue, dst, dst_offset, src, nbytes, blocking): src is a host address")
    copy_d2h = stub("copy_d2h(queue, dst, src, src_offset, nbytes, blocking): dst is a host address")
    copy_d2d = stub("copy_d2d(queue, dst, dst_offset, src, src_offset, nbytes)")
    event_record = stub("event_record(queue): completes when all that is queued has run")
    event_query = stub("event_query(event): whether it has completed; from any thread")
    event_wait = stub("event_wait(event): return once it has completed; from any thread")
    event_destroy = stub("event_destroy(event)")
    synchronize = stub("synchronize(queue): return when all that is queued has run")
    # [queue]

    # [program] @2
    program_load = stub("program_load(source, is_binary, options): compile; BuildFailed with the compiler's words")  # @2
    program_destroy = stub("program_destroy(program)")  # @2
    # [program] @2

    # [launch] @2
    kernel_create = stub("kernel_create(program, name)")  # @2
    kernel_destroy = stub("kernel_destroy(kernel)")  # @2
    launch = stub("launch(queue, kernel, global_size, local_size, args)")  # @2
    # [launch] @2

    # [core_op] @1
    core_op = stub("core_op(queue, name, outputs, inputs, attrs): one op of the table (docs/porting.md)")  # @1
    # [core_op] @1


class ChipDriver(Driver):
    name = "__NAME__"
    device_class = Chip
