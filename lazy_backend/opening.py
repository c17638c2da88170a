"""What happens once, when the first tensor reaches the device: the driver opens, and the op tables go to the recorder."""

from __future__ import annotations

from lazy_backend import _C
from lazy_backend.driver import discovery

# torch's composite of this one asks for another device's tensor too, which is no node of a window.
_NOT_RECORDED = frozenset({"aten._to_copy.default", "aten._to_copy.out"})


def open_device() -> None:
    """Opens the selected driver and tells the recorder which composites of torch it keeps whole."""
    discovery.open_selected()
    from ops_core.lowering import record_list

    names = [name for name in record_list() if name not in _NOT_RECORDED]
    _C.record_overloads([name.removeprefix("aten.").removesuffix(".default") for name in names])
