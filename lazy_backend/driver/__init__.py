"""The driver contract: `lazy_driver.h`, its Python twin, and how a driver is found.

lazy_driver.h    plain C, what a chip implements
base.py          the same contract as a Python base class
capabilities.py  what a chip says about itself, with defaults and validation
errors.py        one exception class per status
abi.py           lazy_driver.h for ctypes
native.py        a C driver seen as the Python twin
adapter.py       a Python driver seen as a C table
origin.py        which line of the user's program a call comes from
cc.py            the host's C compiler, for drivers and simulated kernels
discovery.py     entry points and LAZY_DRIVER
"""
