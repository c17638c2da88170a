"""Graphs made by chance, with views, reductions, products and stores over few shared buffers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ops_core.array import Arr, broadcast, cat, full_like, map_, matmul, where
from tests.codegen.case import Case, build

SHAPES = [(4, 6), (6, 4), (24,), (4, 1), (6,), (2, 2, 6), (3, 4, 6), (1,), (40, 33), (33,)]
LARGEST = 20000


def elementwise(rng: random.Random, x: Arr, others: list[Arr]) -> Arr:
    y = rng.choice(others)
    try:
        fits = np.prod(np.broadcast_shapes(x.shape, y.shape)) <= LARGEST
    except ValueError:
        fits = False
    if not fits:
        return map_("tanh", x)
    makers = [lambda: x + y, lambda: x * y, lambda: x - y, lambda: where(x > y, x, y)]
    return rng.choice([*makers, lambda: map_("maximum", *broadcast(x, y))])()


def reduction(rng: random.Random, x: Arr, others: list[Arr]) -> Arr:
    dims = rng.choice([None, *range(x.ndim)])
    return x.reduce(rng.choice(["sum", "amax", "amin"]), dims, keepdim=rng.random() < 0.6) if x.ndim else x * 2


def view(rng: random.Random, x: Arr, others: list[Arr]) -> Arr:
    choices = [lambda: x.reshape(x.numel)]
    if x.ndim:
        choices += [lambda: x.transpose(0, x.ndim - 1), lambda: x.flip(x.ndim - 1)]
        choices += [lambda: x.pad([1] + [0] * (x.ndim - 1), [0] * (x.ndim - 1) + [2], 0.5)]
        choices += [lambda: x.slice(0, 1, x.shape[0], rng.choice([1, 2]))] if x.shape[0] > 1 else []
        choices += [lambda: cat([x, -x], rng.randrange(x.ndim))]
    choices += [lambda: x.reshape(4, x.numel // 4)] if x.numel % 4 == 0 else []
    return rng.choice(choices)()


def product(rng: random.Random, x: Arr, others: list[Arr]) -> Arr:
    return matmul(x, x.transpose(0, 1)) * 0.1 if x.ndim == 2 else map_("exp", map_("minimum", x, full_like(x, 1.0)))


def scan(rng: random.Random, x: Arr, others: list[Arr]) -> Arr:
    return x.scan("cumsum", rng.randrange(x.ndim)) if x.ndim else x + 1


MAKERS = (elementwise, elementwise, elementwise, reduction, view, view, product, scan)


def write_random(c: Case, seed: int) -> None:
    """3 to 25 nodes; a tenth of the steps overwrite a buffer, or part of it, that others still read."""
    rng, data = random.Random(seed), np.random.default_rng(seed)
    shapes = [rng.choice(SHAPES) for _ in range(rng.randint(1, 4))]
    slots = [(c.slot(data.standard_normal(s).astype(np.float32)), s) for s in shapes]
    values = [c.view(slot, s) for slot, s in slots]
    for _ in range(rng.randint(3, 25)):
        if rng.random() < 0.15:
            slot, shape = rng.choice(slots)
            value = rng.choice([v for v in values if v.shape == shape])
            if len(shape) == 1 and shape[0] > 4 and rng.random() < 0.3:
                c.store(value.slice(0, 0, shape[0] - 2), slot, (1,), rng.choice([0, 1, 2]))
            else:
                c.store(value, slot)
            values.append(c.view(slot, shape))
        else:
            value = rng.choice(MAKERS)(rng, rng.choice(values), values)
            values += [value] if value.numel <= LARGEST else []
    for value in rng.sample(values, min(3, len(values))):
        c.output(value)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled
def test_random_graph(seed: int) -> None:
    build(lambda c: write_random(c, seed)).check()
