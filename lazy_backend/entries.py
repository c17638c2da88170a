"""A level 3 driver's library entries: for which nodes they beat the generated kernels, by measurement.

Each (op, shapes, dtypes, attributes) is timed once a process, on the device by a handle of its own, when a window that
has such a node is compiled; the plan keeps the choice. What would be fused with the op is not part of the race.
"""

from __future__ import annotations

import functools
import json
import logging

from lazy_backend.driver import discovery
from lazy_backend.driver.errors import DriverError, Unsupported
from lazy_backend.porting.bench import Bench
from lazy_backend.porting.execute import Operand, library_times
from ops_core.ir import Node

log = logging.getLogger("lazy_backend.compile")


@functools.cache
def _bench(device: int) -> Bench:
    return Bench(discovery.selected(), device)


def own(device: int) -> frozenset[str]:
    """The core ops that the process's driver has entries for itself."""
    return _bench(device).entries


def wins(device: int, node: Node) -> bool:
    """Whether the driver's entry takes such a node and is faster. False where it fails: generated kernels are there."""
    inputs, outputs = (tuple((v.shape, v.dtype) for v in values) for values in (node.inputs, node.outputs))
    return _measured(device, node.op, inputs, outputs, json.dumps(node.attrs, sort_keys=True))


@functools.cache
def _measured(device: int, op: str, inputs: tuple[Operand, ...], outputs: tuple[Operand, ...], attrs: str) -> bool:
    b = _bench(device)
    static = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(attrs).items()}
    try:
        library, generated = library_times(b, op, inputs, outputs, static)
    except Unsupported as error:
        log.info("%s of %s stays generated: %s", op, inputs, error)
        return False
    except DriverError as error:
        log.warning("the library entry %s of %s failed when it was timed, and is not used: %s", op, inputs, error)
        return False
    finally:
        b.clean_up()
    log.info("%s of %s: %.1f us by the library, %.1f us generated", op, inputs, library * 1e6, generated * 1e6)
    return library < generated
