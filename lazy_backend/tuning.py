"""LAZY_TUNE=on: schedules of matrix products by measurement, in the background, kept in the persistent cache.

A product is asked for by its sizes, the layout of its factors, its dtypes, and whether something is fused with it.
While nothing is known of it, it is compiled by the heuristic and left to the background's process, which times the
heuristic's schedule and a few others in turns on the device. A plan keeps which schedules it was made with: where one
was measured since, the next process that needs the plan makes it anew.

Off by default: the results of a run would depend, in their last bits, on what an earlier one had time to measure.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from lazy_backend import _C, background, cache, config

if TYPE_CHECKING:
    from codegen.anchors import Product
    from codegen.kernels.matmul import Tile
    from lazy_backend.porting.bench import Bench

log = logging.getLogger("lazy_backend.tuning")

# Multiply-adds below which no schedule is timed: some 5 us of one core, about what a launch costs.
MIN_WORK = 1 << 18
# Bytes of factors and result above which none is: the background would take as much again of the device's memory.
MAX_BYTES = 1 << 28
_FORM = [str, int, int, int, bool, int, int, int]  # of a `Tile`


def on() -> bool:
    """Whether measured schedules are used: never where two runs have to give the same bits."""
    wanted = config.TUNE.get() == "on" and not torch.are_deterministic_algorithms_enabled()
    return wanted and cache.folder() is not None


def tiles(device: int, asked: dict[str, Any]) -> Callable[[Product], Any]:
    """What the compiler asks for a product's schedule. asked: gets the answers, by the product's text."""

    def tile(product: Product) -> tuple[Any, ...] | None:
        if not _worth(product):
            return None
        text = json.dumps(product)
        asked[text] = found = chosen(device, text)
        if found is None and config.COMPILE.get() != "never":
            background.tune_later(device, text)
        return tuple(found) if found else None

    return tile


def current(device: int, made_with: Mapping[str, Any]) -> bool:
    """Whether a plan has the schedules that are known now. Those that are not known yet are left to the background."""
    if not on() or config.COMPILE.get() == "never":
        return True
    for text, tile in made_with.items():
        if (found := chosen(device, text)) != tile:
            return False
        if found is None:
            background.tune_later(device, text)
    return True


def chosen(device: int, text: str) -> list[Any] | None:
    """The schedule that was measured to be a product's best; None while none was."""
    name = cache.choice_name(text, _C.device_properties(device))
    if (blob := cache.load(name)) is None:
        return None
    try:
        tile = json.loads(blob)["chosen"]
        if [type(field) for field in tile] != _FORM:
            raise ValueError(tile)
    except (ValueError, LookupError, TypeError) as error:
        log.warning("dropped a schedule that is none: %r", error)
        cache.drop(name)
        return None
    return tile  # type: ignore[no-any-return]


def _worth(product: Product) -> bool:
    work = product.batch * product.m * product.n * product.k
    elements = product.batch * (product.m * product.k + product.k * product.n + product.m * product.n)
    return work >= MIN_WORK and elements * 8 <= MAX_BYTES


# --- the background's process -------------------------------------------------------------------------------------


def tune(device: int, text: str) -> str:
    """Times a product's schedules and keeps the best in the cache. Returns what came of it, in a line.

    Runs in the background's process, which is idle when the script is not.
    """
    from lazy_backend.porting import schedules

    product = parsed(text)
    what = f"matmul {product.batch} x {product.m} x {product.n} x {product.k} {product.dtype}"
    times: dict[Tile, list[float]] = {}
    try:
        times, heuristic = schedules.measured(_bench(device), product)
    except schedules.Busy:
        return f"{what}: left to the next process, this machine was too busy"
    except schedules.Unfit as error:
        log.info("%s is not timed: %s", product, error)
        heuristic = product.rivals(_bench(device).caps)[0]
    best = schedules.choice(times, heuristic)
    us = {tile: schedules.slowest(taken) * 1e6 for tile, taken in times.items()}
    entry = {"product": product, "chosen": best, "heuristic": heuristic, "us": list(us.items())}
    cache.store(cache.choice_name(text, _C.device_properties(device)), json.dumps(entry).encode())

    def said(tile: Tile) -> str:
        flags = (("pack", tile.pack), ("evaluate", tile.evaluate), (f"splits {tile.splits}", tile.splits > 1),
                 (f"slices {tile.slices}", tile.slices > 1))  # fmt: skip
        return " ".join([f"{tile.schedule} {tile.rows}x{tile.vectors}", *(name for name, holds in flags if holds)])

    if best == heuristic:
        return f"{what}: the heuristic's {said(best)} stays" + (f", {us[best]:.1f} us" if us else ", nothing was timed")
    return f"{what}: {said(best)} {us[best]:.1f} us, the heuristic's {said(heuristic)} {us[heuristic]:.1f} us"


def parsed(text: str) -> Product:
    """The product of a text by which it is asked for."""
    from codegen.anchors import Factor, Product

    batch, m, n, k, a, b, *rest = json.loads(text)
    return Product(batch, m, n, k, Factor(*a), Factor(*b), *rest)


@functools.cache
def _bench(device: int) -> Bench:
    from lazy_backend.driver import discovery
    from lazy_backend.porting.bench import Bench

    return Bench(discovery.selected(), device)
