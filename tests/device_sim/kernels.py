"""Kernels in the C dialect, written by hand, and a simulated chip to run them."""

import numpy as np

from device_sim import chip as chips
from device_sim import faults
from device_sim.device import Settings
from device_sim.simgpu import SimGpu
from lazy_backend.driver.base import Buffer, Scalar

SOURCE = """
#include <stdint.h>
void scale(void **args, const uint64_t global[3], const uint64_t local[3])
{
    const float *a0 = *(const float **)args[0];
    float *a1 = *(float **)args[1];
    float a2 = *(float *)args[2];
    for (int64_t i = 0; i < global[0]; i += 1) {
        float v1 = a0[i];
        float v2 = v1 * a2;
        a1[i] = v2;
    }
}
void overrun(void **args, const uint64_t global[3], const uint64_t local[3])
{
    float *a1 = *(float **)args[1];
    a1[global[0]] = 1.0f;
}
void underrun(void **args, const uint64_t global[3], const uint64_t local[3])
{
    float *a1 = *(float **)args[1];
    a1[-1] = 1.0f;
}
void wild(void **args, const uint64_t global[3], const uint64_t local[3])
{
    volatile int x = *(int *)16;
}
"""


def device(*planned, chip="gpu_mid", **settings):
    """A simulated GPU with planned faults."""
    changed = chips.with_settings(chips.load(chip), [f"{k}={v}" for k, v in settings.items()])
    return SimGpu(Settings(changed, faults.Plan(list(planned))))


class Chip:
    """A device with a queue, kernels and two buffers of n floats, the first written with 0, 1, 2, ..."""

    def __init__(self, *planned, n=1024, **settings):
        self.d, self.n = device(*planned, **settings), n
        self.q = self.d.queue_create()
        self.x = np.arange(n, dtype=np.float32)
        self.a, self.b = self.d.alloc(4 * n), self.d.alloc(4 * n)
        self.put(self.a)

    def put(self, mem, blocking=True):
        self.d.copy_h2d(self.q, mem, 0, self.x.ctypes.data, 4 * self.n, blocking)

    def get(self, mem):
        out = np.empty(self.n, np.float32)
        self.d.copy_d2h(self.q, out.ctypes.data, mem, 0, 4 * self.n, True)
        return out

    def launch(self, name="scale", factor=2.0, local=64, at=0):
        kernel = self.d.kernel_create(self.d.program_load(SOURCE.encode(), False, ""), name)
        args = [Buffer(self.a, at), Buffer(self.b), Scalar(np.float32(factor).tobytes())]
        self.d.launch(self.q, kernel, (self.n, 1, 1), (local, 1, 1), args)
