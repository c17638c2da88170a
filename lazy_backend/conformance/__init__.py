"""The conformance suite: PyTorch's own test material, run on a device and compared with the CPU.

A *unit* is one entry of one database at one dtype (``ops/add:float32``); a *case* is one sample of a unit in one
variant (forward, backward, inplace, out, noncontiguous, error). Every case is a function of the device, run on the CPU
and on the device under test, and judged on what the two give: values, or the errors raised.
"""
