"""Stage 0: the driver loads, and says what it is."""

from __future__ import annotations

import ctypes as ct

from lazy_backend.driver import abi, discovery
from lazy_backend.driver.errors import DriverError, Unsupported
from lazy_backend.porting.bench import Bench, CheckFailed, NotOffered, expect

from . import check


@check()
def loads(b: Bench) -> str:
    """The driver is found and its table is of this contract version."""
    try:
        table = abi.DriverApi.from_address(discovery.load(b.name).table)
    except Unsupported as error:
        raise CheckFailed(str(error)) from None
    expect(table.major == abi.MAJOR, f"major is {table.major}, this host serves {abi.MAJOR}")
    expect(
        table.struct_size <= ct.sizeof(table) or table.minor > abi.MINOR,
        f"struct_size is {table.struct_size}, larger than contract {abi.MAJOR}.{abi.MINOR} has: set it to "
        "sizeof(lazy_driver_api) and minor to LAZY_DRIVER_MINOR",
    )
    return f"contract {table.major}.{table.minor}"


@check()
def device_is_there(b: Bench) -> str:
    """At least one device, and it opens."""
    count = b.driver.device_count()
    expect(count >= 1, "device_count gives 0: there is nothing to check")
    b.device.close()
    del b.__dict__["device"]
    return f"{count} device{'s' if count > 1 else ''}; reopens after close: {bool(b.device)}"


@check()
def bad_index_is_refused(b: Bench) -> None:
    """Opening a device that does not exist fails with a text."""
    try:
        b.driver.open(b.driver.device_count() + 7)
    except DriverError as error:
        expect("gave no text" not in str(error), "last_error() has no text after the failed open")
    else:
        expect(False, "open() of a device that does not exist succeeded: check the index")


@check()
def properties_are_sound(b: Bench) -> str:
    """The properties contradict neither themselves nor the contract."""
    caps = b.caps
    expect(caps.name, "name is empty: people read it in reports")
    return f"{caps.name}, level {caps.level}, {caps.language or 'no kernels'}, {caps.global_memory_bytes >> 20} MiB"


@check()
def properties_keep_to_the_hosts_size(b: Bench) -> None:
    """An older host's smaller struct is not written past its end."""
    packed = abi.Properties(struct_size=64)
    before = bytes(packed)[64:]
    b.device.driver.check(b.device.driver.api.properties(b.device.handle, ct.byref(packed)), "properties")
    expect(bytes(packed)[64:] == before, "properties() wrote past out->struct_size: copy at most that many bytes")


@check()
def entries_of_the_level(b: Bench) -> None:
    """The table has the entries that the level needs."""
    if b.caps.level == 1:
        b.needs("core_op")
    else:
        b.needs("program_load", "program_destroy", "kernel_create", "kernel_destroy", "launch")
    if b.caps.host_visible and not b.device.offers("host_pointer"):
        raise NotOffered("write host_pointer, or leave host_visible 0")
