"""A simulated chip of level 3: kernels as simgpu's, and a library with an entry for matrix products.

LIBRARY_CHIP names a way in which the library is not what one would wish.
"""

import os

from device_sim.device import Settings
from device_sim.simgpu import SimGpu, SimGpuDriver
from device_sim.simnpu import SimNpu
from lazy_backend.driver.errors import LaunchFailed, Unsupported


class LibraryChip(SimGpu, SimNpu):
    manner = os.environ.get("LIBRARY_CHIP", "fast")

    def properties(self):
        return super().properties().__class__(**{**vars(super().properties()), "level": 3})

    def core_op(self, queue, name, outputs, inputs, attrs):
        if name != "matmul":
            raise Unsupported(f"no library for {name}")
        if not inputs:
            return
        dense = all(t.strides == dense_strides(t.sizes) for t in inputs)
        match self.manner:
            case "dense only" if not dense:
                raise Unsupported("operands must be dense")
            case "failing":
                raise LaunchFailed("the library is not installed")
            case "stride blind":
                inputs = [t._replace(strides=dense_strides(t.sizes)) for t in inputs]
        for _ in range(40 if self.manner == "slow" else 1):
            super().core_op(queue, name, outputs, inputs, attrs)


def dense_strides(sizes):
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)


class LibraryDriver(SimGpuDriver):
    name, device_class = "library_chip", LibraryChip


def driver():
    """Entry point."""
    return LibraryDriver(Settings.from_environment("gpu_mid"))
