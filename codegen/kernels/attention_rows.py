"""Attention of few queries, as in decoding with a cache: each work item takes a query and walks over the keys once.

Keys and values are read where they lie, a row at a time; the scores of a block of keys are a vector in registers.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

from codegen.builder import Builder, V
from codegen.kernels.attention import LN_2, LOG2_E, AttentionSpec, column_offsets, power, renamed
from codegen.kernels.blocks import lanes
from codegen.kernels.reduction import larger
from codegen.kernels.step import Step, Steps


def attention_rows(name: str, spec: AttentionSpec, caps: Any) -> Steps:
    """The forward kernel. caps: `Capabilities`."""
    block = caps.vector_bytes // 4  # keys
    deep, wide = lanes(caps, 4, spec.depth), lanes(caps, 4, spec.value_depth)
    terms, columns = column_offsets(spec.depth, deep), column_offsets(spec.value_depth, wide)

    k = Builder(name, spec.index_bits, (1, 1, 1))
    read_q, read_k, read_v = spec.q(k), spec.k(k), spec.v(k)
    read_bias = spec.bias(k) if spec.bias else None
    write_out = spec.out(k)
    write_lse = spec.lse(k) if spec.lse else None
    i = k.global_id(0)
    here = [k.global_id(2), k.global_id(1)]
    scores = k.private("f32", block)

    def row(read: Any, at: V, offsets: list[int], width: int) -> list[V]:
        return [read([*here, at, offset], 3 if width > 1 else None, width) for offset in offsets]

    query = [q * (spec.scale * LOG2_E) for q in row(read_q, i, terms, deep)]
    if again := len(terms) * deep - spec.depth:  # terms of the last vector that the one before has
        query[-1] = k.select(k.iota(deep) >= again, query[-1], 0.0)
    count: V | int = spec.keys
    if spec.causal:
        count = k.map("minimum", i + 1, spec.keys)

    zeros = [k.const(0.0, "f32", wide)] * len(columns)
    top, total = k.const(-math.inf, "f32"), k.const(0.0, "f32")
    with k.for_(0, count, block, init=[top, total, *zeros]) as outer:
        old, so_far, *values = outer.args
        end = k.map("minimum", outer.iv + block, count)
        k.store(scores, 0, k.const(-math.inf, "f32", block))
        with k.for_(outer.iv, end) as loop:
            products = [q * x for q, x in zip(query, row(read_k, loop.iv, terms, deep), strict=True)]
            score = k.reduce(operator.add, functools.reduce(operator.add, products))
            if read_bias:
                bias = read_bias([*here, i, loop.iv])
                score = k.select(bias, score, -math.inf) if spec.boolean else k.multiply_add(bias, LOG2_E, score)
            k.store(scores, loop.iv - outer.iv, score)
        line = k.load(scores, 0, block)
        new = larger(k.reduce(larger, line), old)
        shift = k.select(new == -math.inf, 0.0, new)
        factor, weights = power(k, old - shift), power(k, line - shift)
        k.store(scores, 0, weights)
        rescaled = [value * factor for value in values]
        with k.for_(outer.iv, end, init=rescaled) as loop:
            weight = k.load(scores, loop.iv - outer.iv)
            rows = row(read_v, loop.iv, columns, wide)
            loop.yield_(
                *(k.multiply_add(k.broadcast(weight, wide), x, v) for x, v in zip(rows, loop.args, strict=True))
            )
        outer.yield_(new, k.multiply_add(so_far, factor, k.reduce(operator.add, weights)), *loop.results)
    top, total, *values = outer.results
    # top - top: a score that is infinite or NaN makes its row NaN.
    share = k.select(total == 0.0, 0.0, 1.0 / total + (top - top))
    for offset, value in zip(columns, values, strict=True):
        write_out([*here, i, k.const(offset, "index")], [value * share], 3 if wide > 1 else None)
    if write_lse:
        write_lse([*here, i], [k.select(total == 0.0, -math.inf, (k.map("log2", total) + top) * LN_2)])
    args = ("q", "k", "v", *(("bias",) if spec.bias else ()), "out", *(("lse",) if spec.lse else ()))
    step = Step(name, k.finish(), renamed(spec, args), (spec.queries, spec.heads, spec.batch), (1, 1, 1))
    return Steps([step], [])
