"""Simulated accelerators on the driver contract: separate memory, late queues, a virtual clock, planned faults.

chip.py     hardware descriptions (chips/*.toml)
clock.py    virtual time: what each command costs on a chip, and when it runs
memory.py   device memory: guarded, poisoned, checked
faults.py   planned faults
device.py   the driver both chips share: memory, queues, copies, events
simgpu.py   a level 2 chip: kernels in C, compiled by the host
simnpu.py   a level 1 chip: core ops from the op table's NumPy references
cost.py     flops and bytes of a kernel's source or a core op
report.py   what the clock saw: numbers, roofline, timeline
"""
