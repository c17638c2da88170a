"""The core op table: everything a device must compute, one entry an op.

A graph (`ops_core.ir`) holds only these ops. Tracer, compiler, simulator, coverage report and docs read this table;
the MLIR text of each op is keyed by the same names in `codegen.linalg`. At most 32 structural ops, and one `map`
over at most 64 scalar functions (`ops_core.scalars`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ops_core.reference import REFERENCES
from ops_core.scalars import BY_NAME as SCALARS

__all__ = ["BY_NAME", "SCALARS", "STRUCTURAL", "TABLE", "CoreOp"]


@dataclass(frozen=True)
class CoreOp:
    """One core op. `kind`: how output shapes follow from inputs; `signature`: inputs {attributes} -> outputs.
    `reference(attrs, *arrays)` is None for ops that touch memory or parameters (the interpreter does those)."""

    name: str
    kind: str
    signature: str
    doc: str

    @property
    def reference(self) -> Callable[..., Any] | None:
        """The NumPy meaning; None for memory ops and `map`."""
        return REFERENCES.get(self.name)


TABLE = (
    CoreOp("load", "memory", "() {slot, sizes, strides, offset} -> T[sizes]", "read a strided view of a slot"),
    CoreOp("store", "memory", "(x: T[sizes]) {slot, sizes, strides, offset} -> ()", "write a strided view of a slot"),
    CoreOp("param", "memory", "() {index} -> f64 | i64 | bool []", "a run-time scalar of the window"),
    CoreOp("full", "factory", "() {value} -> T[shape]", "one compile-time number everywhere"),
    CoreOp("iota", "factory", "() {} -> T[n]", "0, 1, ..., n - 1"),
    CoreOp("expand", "view", "(x) {shape} -> T[shape]", "NumPy broadcasting, dimensions aligned at the right"),
    CoreOp("permute", "view", "(x) {dims} -> T", "output dimension d is input dimension dims[d]"),
    CoreOp("reshape", "view", "(x) {shape} -> T[shape]", "the same elements in row-major order"),
    CoreOp("slice", "view", "(x) {start, size, step} -> T[size]", "x[start + i * step] a dimension; a step may be < 0"),
    CoreOp("pad", "movement", "(x, value: T[]) {low, high} -> T", "`low` values before and `high` after, a dimension"),
    CoreOp("cat", "movement", "(x...) {dim} -> T", "concatenation along dim"),
    CoreOp("gather", "gather", "(x, index: i64) {dim} -> T[index.shape]", "torch.gather; indices are in range"),
    CoreOp("index", "gather", "(x, i0: i64[s], ...) {dims = 0..k-1} -> T[s + rest]",
           "x[i0, i1, ...]; all i share one shape"),
    CoreOp("index_put", "scatter", "(x, values: T[s + rest], i0: i64[s], ...) {dims = 0..k-1, reduce} -> T[x.shape]",
           "x[i0, ...] = values (reduce 'set') or += values ('add')"),
    CoreOp("scatter", "scatter", "(x, index: i64, src: T[index.shape]) {dim, reduce} -> T[x.shape]",
           "torch.scatter_reduce including self; reduce: set, add, mul, amax, amin"),
    CoreOp("sum", "reduction", "(x) {dims} -> T", "sum; half types accumulate in f32"),
    CoreOp("prod", "reduction", "(x) {dims} -> T", "product; half types accumulate in f32"),
    CoreOp("amax", "reduction", "(x) {dims, softmax?} -> T",
           "largest, nan wins; `or` for bool. softmax: a sum over exp(x - it) tells of nan, which may be lost here"),
    CoreOp("amin", "reduction", "(x) {dims} -> T", "smallest, nan wins; `and` for bool"),
    CoreOp("argmax", "reduction", "(x) {dims: one} -> i64", "first position of the largest, nan counts as largest"),
    CoreOp("argmin", "reduction", "(x) {dims: one} -> i64", "first position of the smallest, nan counts as smallest"),
    CoreOp("cumsum", "scan", "(x) {dim} -> T", "inclusive running sum"),
    CoreOp("cumprod", "scan", "(x) {dim} -> T", "inclusive running product"),
    CoreOp("cummax", "scan", "(x) {dim} -> T, i64", "running maximum and its last position; nan sticks"),
    CoreOp("logcumsumexp", "scan", "(x) {dim} -> T", "log of the running sum of exp"),
    CoreOp("matmul", "contraction", "(a: T[b.., m, k], b: T[b.., k, n]) {} -> T[b.., m, n]",
           "batched matrix product; half types accumulate in f32"),
    CoreOp("convolution", "contraction",
           "(x: T[N, C, ...], w) {stride, padding, dilation, transposed, output_padding, groups} -> T[N, K, ...]",
           "cross-correlation of torch.convolution without bias"),
    CoreOp("sort", "sort", "(x) {dim, descending, stable, start, count} -> T, i64",
           "values and positions at places start .. start + count of the order; nan counts as largest"),
    CoreOp("searchsorted", "sort", "(sorted: T[.., n], values: T[.., m]) {right} -> i64[.., m]",
           "insertion points; a 1-D table serves values of any shape"),
    CoreOp("nonzero", "data-dependent", "(x) {size} -> i64[size, rank]",
           "positions of the first `size` non-zeros, then -1"),
    CoreOp("rand_bits", "random", "(seed: i64[], offset: i64[]) {} -> u32[shape]",
           "Philox4x32-10: element i is lane i % 4 of counter offset + i // 4 under key seed"),
    CoreOp("map", "elementwise", "(x...) {fn, to, softmax?, beside_one?} -> T",
           "one scalar function; operands have the output's shape. softmax: exp of what is at most 0, or nan; results "
           "below 2^-125 may be 0. beside_one: erf to which 1 is added, so that its absolute error counts"),
)  # fmt: skip
BY_NAME = {op.name: op for op in TABLE}
STRUCTURAL = tuple(op.name for op in TABLE if op.name != "map")
