"""Losses without a decomposition in PyTorch, distances, bags of embeddings, segments, histograms."""

# mypy: disable-error-code="no-untyped-def"
# (rules take the arguments of their operator's schema, which types them)

from __future__ import annotations

import math
from typing import Any

from ops_core import array as A
from ops_core.array import Arr, where
from ops_core.lowering.bounds import checked, clamp, required
from ops_core.lowering.indexing import MEAN, NONE, frequency
from ops_core.lowering.pointwise import abs_
from ops_core.lowering.promote import opmath, up
from ops_core.lowering.registry import NotLowerable, rule
from ops_core.sizes import real


def _rows(x: Arr, target: Arr) -> tuple[Arr, Arr]:
    return (x if x.ndim == 2 else x.reshape(1, -1)), target.to("i64")


@rule("multi_margin_loss_backward")
def _multi_margin_loss_backward(grad_output, self, target, p, margin, weight=None, reduction=MEAN):
    x, t = _rows(up(self), target.reshape(-1) if target.ndim == 0 else target)
    n, c = x.shape
    index = clamp(t, c).reshape(n, 1)  # checked on the way forward
    at_target = A.positions((n, c), 1).eq(index)
    z = float(margin) - x.gather(1, index) + x
    w = 1.0 if weight is None else weight.to(x.dtype).take(index.reshape(n)).unsqueeze(1)
    slope = where((z > 0.0) & ~at_target, (2.0 * z if int(p) == 2 else A.full_like(z, 1.0)), 0.0) * w / real(c)
    grads = where(at_target, -slope.sum(1, True), slope)
    g = grad_output.to(x.dtype)
    g = g.reshape(n, 1) if reduction == NONE and g.ndim else g / real(n) if reduction == MEAN else g
    return (grads * g).reshape(*self.shape).to(self.dtype)


@rule("multilabel_margin_loss_forward")
def _multilabel_margin_loss_forward(self, target, reduction=MEAN):
    x, t = _rows(up(self), target)
    n, c = x.shape
    t = t.reshape(n, c)
    valid = _leading(t)
    safe = checked(where(valid, t, 0), c, "margin")
    on = A.full((n, c), 0, "i64").scatter(1, safe, valid.to("i64"), "amax")
    # margin of every (label, class) pair: [n, labels, classes]
    z = 1.0 - x.gather(1, safe).unsqueeze(2) + x.unsqueeze(1)
    pays = (z > 0.0) & valid.unsqueeze(2) & on.eq(0).unsqueeze(1)
    losses = where(pays, z, 0.0).sum((1, 2)) / real(c)
    out = losses.reshape(*self.shape[:-1]) if reduction == NONE else losses.sum((0,))
    out = out / real(n) if reduction == MEAN else out
    return out.to(self.dtype), on.to(self.dtype).reshape(*target.shape)


@rule("multilabel_margin_loss_backward")
def _multilabel_margin_loss_backward(grad_output, self, target, reduction, is_target):
    x, t = _rows(up(self), target)
    t = t.reshape(*x.shape)
    n, c = x.shape
    on = is_target.to(x.dtype).reshape(*x.shape)
    valid = _leading(t)
    safe = clamp(where(valid, t, 0), c)  # checked on the way forward
    # margin of every (label, class) pair: [n, labels, classes]
    z = 1.0 - x.gather(1, safe).unsqueeze(2) + x.unsqueeze(1)
    hit = ((z > 0.0) & valid.unsqueeze(2) & on.eq(0.0).unsqueeze(1)).to(x.dtype) / real(c)
    grads = hit.sum(1)
    grads = grads.scatter(1, safe, -hit.sum(2), "add")
    g = grad_output.to(x.dtype)
    g = g.reshape(n, 1) if reduction == NONE and g.ndim else g / real(n) if reduction == MEAN else g
    return (grads * g).reshape(*self.shape).to(self.dtype)


def _leading(t: Arr) -> Arr:
    """Labels before the first negative one of each row."""
    return (t < 0).to("i64").scan("cumsum", 1).eq(0)


@rule("_trilinear")
def _trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim=1):
    def spread(x: Arr, dims: Any) -> Arr:
        for d in sorted(dims):
            x = x.unsqueeze(d)
        return x

    a, b, c = spread(up(i1), expand1), spread(up(i2), expand2), spread(up(i3), expand3)
    return (a * b * c).sum(sumdim).to(i1.dtype) if len(sumdim) else (a * b * c).to(i1.dtype)


# distances
def _distance(diff: Arr, p: float) -> Arr:
    """The p-norm of the last dimension."""
    x = abs_(diff)
    if p == 0:
        return x.ne(0).to(x.dtype).sum(-1)
    if p == 1:
        return x.sum(-1)
    if p == 2:
        return A.map_("sqrt", (x * x).sum(-1))
    if p == math.inf:
        return x.amax(-1)
    return A.map_("pow", A.map_("pow", x, p).sum(-1), 1.0 / p)


def _distance_slope(diff: Arr, grad: Arr, dist: Arr, p: float) -> Arr:
    """Gradient of `_distance` with respect to diff; grad and dist still have the last dimension of size 1."""
    sign = A.map_("sign", diff)
    if p == 0:
        return A.full_like(diff, 0.0)
    if p == 1:
        return sign * grad
    if p == math.inf:
        return where(abs_(diff).eq(dist), sign * grad, 0.0)
    if p == 2:
        return where(dist.eq(0.0), 0.0, grad * diff / dist)
    safe = where(dist.eq(0.0), 1.0, dist)
    if p < 2:
        out = sign * A.map_("pow", abs_(diff), p - 1) * grad / A.map_("pow", safe, p - 1)
        return where(dist.eq(0.0) | diff.eq(0.0), 0.0, out)
    out = diff * A.map_("pow", abs_(diff), p - 2) * grad / A.map_("pow", safe, p - 1)
    return where(dist.eq(0.0), 0.0, out)


@rule("_cdist_forward")
def _cdist_forward(x1, x2, p, compute_mode):
    a, b = x1.unsqueeze(-2), x2.unsqueeze(-3)
    shape = A.broadcast_shapes(a.shape, b.shape)
    if math.prod(shape) == 0:
        return A.full(shape[:-1], 0, x1.dtype)
    return _distance(a - b, float(p))


@rule("_cdist_backward")
def _cdist_backward(grad, x1, x2, p, cdist):
    if grad.numel == 0 or x1.numel == 0:  # of x1 as it is, where otherwise of all batches
        return A.full(x1.shape, 0, x1.dtype)
    shape = (*grad.shape[:-1], x1.shape[-1])
    diff = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return _distance_slope(diff, grad.unsqueeze(-1), cdist.unsqueeze(-1), float(p)).sum(-2).reshape(*shape)


def _upper_pairs(n: int) -> tuple[Arr, Arr]:
    """Rows i < j of the n (n - 1) / 2 pairs in order, computed from the pair's number."""
    k = A.iota(n * (n - 1) // 2)

    def first(i: Arr) -> Arr:  # pair of row i
        return i * (2 * n - 1 - i) / 2

    # first(i) = k solved for i, which rounding puts less than one row away
    root = A.map_("sqrt", ((2 * n - 1) * (2 * n - 1) - k * 8).to("f32"))
    i = ((2 * n - 1 - root) * 0.5).to("i64")
    i = where(first(i) > k, i - 1, i)
    i = where(first(i + 1) <= k, i + 1, i)
    return i, k - first(i) + i + 1


@rule("_pdist_forward")
def _pdist_forward(self, p=2):
    n = self.shape[0]
    if n < 2 or self.shape[1] == 0:
        return A.full((max(0, n * (n - 1) // 2),), 0, self.dtype)
    i, j = _upper_pairs(n)
    return _distance(self.take(i) - self.take(j), float(p))


@rule("_pdist_backward")
def _pdist_backward(grad, self, p, pdist):
    n = self.shape[0]
    if n < 2 or self.shape[1] == 0:
        return A.full(self.shape, 0, self.dtype)
    i, j = _upper_pairs(n)
    slope = _distance_slope(self.take(i) - self.take(j), grad.unsqueeze(1), pdist.unsqueeze(1), float(p))
    zeros = A.full(self.shape, 0, self.dtype)
    return zeros.index_put([i], slope, "add").index_put([j], -slope, "add")


# bags of embeddings
SUM_BAG, MEAN_BAG, MAX_BAG = 0, 1, 2


def _bag_of(indices: Arr, offsets: Arr, bags: int) -> Arr:
    """The bag of each index, from the bags' first positions: how many begin there or before, less one."""
    count = indices.shape[0]
    begin = A.map_("minimum", A.map_("maximum", offsets.to("i64"), 0), count)
    begun = A.full((count + 1,), 0, "i64").index_put([begin], A.full(begin.shape, 1, "i64"), "add")
    return begun.slice(0, 0, count).scan("cumsum", 0) - 1


def _bags(offsets: Arr, include_last: bool) -> int:
    return max(offsets.shape[0] - 1, 0) if include_last else offsets.shape[0]


@rule("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    weight, indices, offsets, scale_grad_by_freq=False, mode=SUM_BAG, sparse=False, per_sample_weights=None,
    include_last_offset=False, padding_idx=-1,
):  # fmt: skip
    count, bags, width = indices.shape[0], _bags(offsets, include_last_offset), weight.shape[1]
    dtype = opmath(weight.dtype)
    maximum = A.full((bags, width) if mode == MAX_BAG else (0,), 0, indices.dtype)
    if count == 0 or bags == 0:
        return (A.full((bags, width), 0, weight.dtype), A.full((count,), 0, indices.dtype),
                A.full(offsets.shape, 0, indices.dtype), maximum)  # fmt: skip
    rows = checked(indices, weight.shape[0], "bag")
    starts = offsets.to("i64").slice(0, 0, bags)
    required(starts.slice(0, 0, 1).eq(0), "first bag")
    bag = _bag_of(rows, starts, bags)
    if padding_idx >= 0:
        keeps = rows.ne(padding_idx)
        size = A.full((bags,), 0, "i64").index_put([bag], keeps.to("i64"), "add")
    else:
        keeps = A.full(rows.shape, True, "bool")
        size = A.cat([starts.slice(0, 1), A.full((1,), count, "i64")], 0) - starts
    values = weight.to(dtype).take(rows)
    if per_sample_weights is not None:
        values = values * per_sample_weights.to(dtype).unsqueeze(1)
    if mode == MAX_BAG:
        spread = bag.unsqueeze(1).expand(count, width)
        low = A.full((bags, width), -math.inf, dtype)
        best = low.scatter(0, spread, where(keeps.unsqueeze(1), values, -math.inf), "amax")
        hit = values.eq(best.take(bag)) & keeps.unsqueeze(1)
        position = where(hit, A.iota(count).unsqueeze(1), count)
        first = A.full((bags, width), count, "i64").scatter(0, spread, position, "amin")
        found = first < count
        maximum = where(found, rows.take(where(found, first, 0).reshape(-1)).reshape(bags, width), 0).to(indices.dtype)
        out = where(found, best, 0.0)
    else:
        zeros = A.full((bags, width), 0, dtype)
        out = zeros.index_put([bag], where(keeps.unsqueeze(1), values, 0.0), "add")
        if mode == MEAN_BAG:
            out = out / A.map_("maximum", size, 1).to(dtype).unsqueeze(1)
    sizes = size.pad((0,), (offsets.shape[0] - bags,)).to(indices.dtype)
    return out.to(weight.dtype), bag.to(indices.dtype), sizes, maximum


@rule("_embedding_bag_dense_backward", "_embedding_bag_backward")
def _embedding_bag_dense_backward(
    grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
    per_sample_weights=None, padding_idx=-1, offsets=None, sparse=False,
):  # fmt: skip
    if sparse:
        raise NotLowerable("a sparse gradient")
    width = grad.shape[1]
    dtype = opmath(grad.dtype)
    zeros = A.full((num_weights, width), 0, dtype)
    if indices.numel == 0 or grad.shape[0] == 0:
        return zeros.to(grad.dtype)
    g = grad.to(dtype)
    if mode == MAX_BAG:
        filled = bag_size.slice(0, 0, grad.shape[0]).to("i64").ne(0).unsqueeze(1)
        out = zeros.scatter(0, maximum_indices.to("i64"), where(filled, g, 0.0), "add")
        return out.to(grad.dtype)
    rows = clamp(indices, num_weights)  # checked on the way forward
    bag = _bag_of(rows, offsets.to("i64"), grad.shape[0]) if offset2bag.numel == 0 else offset2bag.to("i64")
    values = g.take(bag)
    if mode == MEAN_BAG:
        values = values / A.map_("maximum", bag_size.to("i64").take(bag), 1).to(dtype).unsqueeze(1)
    if per_sample_weights is not None:
        values = values * per_sample_weights.to(dtype).unsqueeze(1)
    if scale_grad_by_freq:
        values = values / frequency(rows, num_weights, dtype).take(rows).unsqueeze(1)
    if padding_idx >= 0:
        values = where(rows.ne(padding_idx).unsqueeze(1), values, 0.0)
    return zeros.index_put([rows], values, "add").to(grad.dtype)


@rule("_embedding_bag_per_sample_weights_backward")
def _embedding_bag_per_sample_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1):
    rows = indices.to("i64")
    if rows.numel == 0:
        return A.full((0,), 0, grad.dtype)
    bag = _bag_of(rows, offsets.to("i64"), grad.shape[0]) if offset2bag.numel == 0 else offset2bag.to("i64")
    dot = (up(grad).take(bag) * up(weight).take(rows)).sum(1)
    return (where(rows.ne(padding_idx), dot, 0.0) if padding_idx >= 0 else dot).to(grad.dtype)


# segments
_EMPTY = {"max": -math.inf, "min": math.inf, "mean": math.nan, "sum": 0.0, "prod": 1.0}


def _segments(data: Arr, lengths: Any, offsets: Any, axis: int) -> tuple[Arr, Arr, int]:
    """(segment of each position [*, n], segment lengths [*, k], k)."""
    if lengths is None:
        offsets = offsets.to("i64")
        k = offsets.shape[-1] - 1
        sizes = offsets.slice(-1, 1) - offsets.slice(-1, 0, k)
    else:
        sizes = lengths.to("i64")
        k = sizes.shape[-1]
    ends = sizes.scan("cumsum", -1)
    n = data.shape[axis]
    at = A.iota(n).expand(*sizes.shape[:-1], n)
    return A.searchsorted(ends, at, right=True), sizes, k


@rule("segment_reduce")
def _segment_reduce(data, reduce, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None):
    segment, sizes, k = _segments(data, lengths, offsets, axis)
    required(sizes >= 0, "segment length")
    if lengths is not None and not unsafe:
        required(sizes.sum(-1).eq(data.shape[axis]), "segments")
    start = _EMPTY[reduce] if initial is None else float(initial)
    shape = (*data.shape[:axis], k, *data.shape[axis + 1 :])
    dtype = opmath(data.dtype)
    column = (*sizes.shape, *(1,) * (data.ndim - axis - 1))
    seed = start if reduce in ("max", "min", "prod") else (0.0 if initial is None else start)
    at = segment.reshape(*segment.shape, *(1,) * (data.ndim - axis - 1)).expand(*data.shape)
    padded = A.full((*shape[:axis], k + 1, *shape[axis + 1 :]), seed, dtype)
    combine = {"max": "amax", "min": "amin", "prod": "mul", "sum": "add", "mean": "add"}[reduce]
    out = (
        padded.scatter(axis, at, data.to(dtype), combine).slice(axis, 0, k) if data.numel else padded.slice(axis, 0, k)
    )
    if reduce == "mean":
        size = sizes.reshape(*column)
        out = where(size > 0, out / A.map_("maximum", size, 1).to(dtype), start if initial is not None else math.nan)
    return out.to(data.dtype)


@rule("_segment_reduce_backward")
def _segment_reduce_backward(grad, output, data, reduce, lengths=None, offsets=None, axis=0, initial=None):
    segment, sizes, k = _segments(data, lengths, offsets, axis)
    if data.numel == 0:
        return A.full(data.shape, 0, data.dtype)
    tail = (1,) * (data.ndim - axis - 1)
    at = A.map_("minimum", segment, k - 1).reshape(*segment.shape, *tail).expand(*data.shape)
    covered = (segment < k).reshape(*segment.shape, *tail)
    dtype = opmath(data.dtype)
    x, g, y = data.to(dtype), grad.to(dtype).gather(axis, at), output.to(dtype).gather(axis, at)
    if reduce in ("max", "min"):
        hit = (x.eq(y) | x.ne(x)) & covered
        counts = A.full(output.shape, 0, dtype).scatter(axis, at, hit.to(dtype), "add")
        out = where(hit, g / A.map_("maximum", counts, 1.0).gather(axis, at), 0.0)
    elif reduce == "mean":
        size = A.map_("maximum", sizes, 1).to(dtype).reshape(*sizes.shape, *tail).expand(*output.shape)
        out = g / size.gather(axis, at)
    elif reduce == "prod":
        zero = x.eq(0.0)
        base = A.full(output.shape, 1.0 if initial is None else float(initial), dtype)
        others = base.scatter(axis, at, where(covered, where(zero, 1.0, x), 1.0), "mul").gather(axis, at)
        zeros = A.full(output.shape, 0, dtype).scatter(axis, at, (zero & covered).to(dtype), "add").gather(axis, at)
        out = g * where(zero, where(zeros.eq(1.0), others, 0.0), where(zeros > 0.0, 0.0, y / where(zero, 1.0, x)))
    else:
        out = g
    return where(covered, out, 0.0).to(data.dtype)


# histograms
def _edges(low: Any, high: Any, bins: int, dtype: str) -> Arr:
    from ops_core.lowering.movement import _linspace
    from ops_core.lowering.promote import TO_TORCH

    return _linspace(low, high, bins + 1, TO_TORCH[dtype])


def _range_of(x: Arr, given: Any) -> tuple[Any, Any]:
    """(lower, upper) of a histogram: as given, else the data's; equal ends open by 1."""
    if given is not None:
        low, high = float(given[0]), float(given[1])
        return (low - 0.5, high + 0.5) if low == high else (low, high)
    if x.numel == 0:
        return 0.0, 1.0
    first, last = x.amin(), x.amax()
    same = first.eq(last)
    return where(same, first - 0.5, first), where(same, last + 0.5, last)


def _place(x: Arr, edges: Arr) -> Arr:
    """The bin of each value by its edges (last one closed); `bins` for values outside."""
    bins = edges.shape[0] - 1
    at = A.searchsorted(edges, x, right=True) - 1
    at = where(x.eq(edges.select(0, bins)), bins - 1, at)
    return where((x >= edges.select(0, 0)) & (x <= edges.select(0, bins)), at, bins)


def _counted(x: list[Arr], edges: list[Arr], weight: Any, density: bool, dtype: str) -> Arr:
    """The (weighted) counts of points x[d] [n] over the product of bins."""
    shape = tuple(e.shape[0] - 1 for e in edges)
    flat: Arr | None = None
    inside: Arr | None = None
    for xs, e, n in zip(x, edges, shape, strict=False):
        at = _place(xs, e)
        ok = at < n
        safe = where(ok, at, 0)
        flat = safe if flat is None else flat * n + safe
        inside = ok if inside is None else inside & ok
    assert flat is not None and inside is not None
    w = A.full(flat.shape, 1, dtype) if weight is None else weight.to(dtype).reshape(*flat.shape)
    counts = A.full((math.prod(shape),), 0, dtype)
    if flat.numel:
        counts = counts.index_put([flat], where(inside, w, 0.0), "add")
    if density:
        volume: Arr | None = None
        for d, e in enumerate(edges):
            width = (e.slice(0, 1) - e.slice(0, 0, shape[d])).reshape(
                *(n if i == d else 1 for i, n in enumerate(shape))
            )
            volume = width if volume is None else volume * width
        assert volume is not None
        counts = counts / counts.sum() / volume.expand(*shape).reshape(-1)
    return counts.reshape(*shape)


@rule("histogram.bin_ct")
def _histogram_bin_ct(self, bins=100, range=None, weight=None, density=False):
    x = self.reshape(-1)
    edges = _edges(*_range_of(x, range), bins, self.dtype)
    return _counted([x], [edges], weight, density, self.dtype), edges


@rule("histogram.bins_tensor")
def _histogram_bins_tensor(self, bins, weight=None, density=False):
    return _counted([self.reshape(-1)], [bins], weight, density, self.dtype), bins


def _columns(x: Arr) -> list[Arr]:
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return [flat.select(1, d) for d in range(x.shape[-1])]


@rule("_histogramdd_bin_edges")
def _histogramdd_bin_edges(self, bins, range=None, weight=None, density=False):
    if len(bins) != self.shape[-1]:
        raise RuntimeError("histogramdd: The size of bins must be equal to the innermost dimension of the input.")
    pairs = [None] * len(bins) if range is None else list(zip(range[::2], range[1::2], strict=False))
    return [
        _edges(*_range_of(x, given), n, self.dtype) for x, n, given in zip(_columns(self), bins, pairs, strict=False)
    ]


@rule("_histogramdd_from_bin_cts")
def _histogramdd_from_bin_cts(self, bins, range=None, weight=None, density=False):
    edges = _histogramdd_bin_edges(self, bins, range)
    return _counted(_columns(self), edges, weight, density, self.dtype)


@rule("_histogramdd_from_bin_tensors")
def _histogramdd_from_bin_tensors(self, bins, weight=None, density=False):
    return _counted(_columns(self), list(bins), weight, density, self.dtype)


# masked softmax of the transformer's fast path
def _attention_mask(self: Arr, mask: Arr, mask_type: int | None) -> Arr:
    if mask_type == 0:
        return mask.to("bool").expand(*self.shape)
    if mask_type == 1:
        return mask.to("bool").reshape(mask.shape[0], 1, 1, mask.shape[1]).expand(*self.shape)
    return mask.to("bool").expand(*self.shape)


@rule("_masked_softmax")
def _masked_softmax(self, mask, dim=None, mask_type=None):
    d = self.ndim - 1 if dim is None else dim
    off = _attention_mask(self, mask, mask_type)
    x = where(off, -math.inf, up(self))
    top = x.amax(d, True)
    e = where(off, 0.0, A.map_("exp", x - top))
    total = e.sum(d, True)
    return where(total.eq(0.0), 0.0, e / total).to(self.dtype)


@rule("_masked_softmax_backward")
def _masked_softmax_backward(grad_output, output, mask, dim=None):
    d = output.ndim - 1 if dim is None else dim
    off = mask.to("bool").expand(*output.shape)
    g, y = where(off, 0.0, up(grad_output)), where(off, 0.0, up(output))
    return (y * (g - (g * y).sum(d, True))).to(output.dtype)
