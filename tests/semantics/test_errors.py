"""Wrong calls raise at the call, with the message of eager, and leave the device usable."""

import contextlib
import math
import re

import pytest
import torch
import torch.nn.functional as F

WRONG = {
    "shapes that do not broadcast": lambda d: torch.ones(2, device=d) + torch.ones(3, device=d),
    "matmul of wrong sizes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "cat of wrong sizes": lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(3, 2, device=d)]),
    "a dimension out of range": lambda d: torch.ones(2, device=d).sum(3),
    "a view that does not fit": lambda d: torch.ones(6, device=d).view(4),
    "a negative step": lambda d: torch.ones(6, device=d)[::-1],
    "an index out of range": lambda d: torch.ones(6, device=d)[7],
    "a boolean mask of another shape": lambda d: torch.ones(6, device=d)[torch.ones(5, dtype=torch.bool, device=d)],
    "two dtypes in matmul": lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, dtype=torch.float64, device=d),
    "an item of many": lambda d: torch.ones(2, device=d).item(),
    "the truth of many": lambda d: bool(torch.ones(2, device=d)),
    "a loss of wrong classes": lambda d: F.cross_entropy(
        torch.ones(2, 3, device=d), torch.zeros(3, dtype=torch.long, device=d)
    ),
    "a loss of classes that are no int64": lambda d: F.cross_entropy(
        torch.ones(2, 3, device=d), torch.zeros(2, dtype=torch.int32, device=d)
    ),
    "a loss of an image's classes that are no int64": lambda d: F.cross_entropy(
        torch.ones(2, 3, 4, 4, device=d), torch.zeros(2, 4, 4, dtype=torch.int32, device=d)
    ),
    "a loss of whole numbers": lambda d: F.nll_loss(
        torch.ones(2, 3, dtype=torch.long, device=d), torch.zeros(2, dtype=torch.long, device=d)
    ),
    "a loss whose weight has another dtype": lambda d: F.nll_loss(
        torch.ones(2, 3, device=d),
        torch.zeros(2, dtype=torch.long, device=d),
        torch.ones(3, dtype=torch.double, device=d),
    ),
    "norms of whole numbers": lambda d: torch._foreach_norm([torch.ones(2, dtype=torch.long, device=d)]),
    "whole numbers times a float in place": lambda d: torch._foreach_mul_(
        [torch.ones(2, dtype=torch.long, device=d)], torch.tensor(0.5, device=d)
    ),
    "layer norm of wrong sizes": lambda d: F.layer_norm(torch.ones(2, 3, device=d), [4]),
    "a float to a bit op": lambda d: torch.ones(2, device=d) & 1,
    "a truth taken from a number": lambda d: torch.ones(2, dtype=torch.long, device=d) - truths(d),
    "a number taken from a truth": lambda d: truths(d) - 1,
    "a truth taken from one": lambda d: 1 - truths(d),
    "a truth taken in place": lambda d: torch.ones(2, device=d).sub_(truths(d)),
    "the positive part of truths": lambda d: truths(d).relu(),
    "truths rounded down": lambda d: truths(d).floor(),
    "the place of the greatest truth": lambda d: truths(d).argmax(),
    "the variance of integers": lambda d: torch.ones(2, dtype=torch.long, device=d).var(),
    "the deviation of integers": lambda d: torch.ones(2, 2, dtype=torch.int32, device=d).std(0),
    "the sign of a complex number": lambda d: torch.ones(2, dtype=torch.complex64, device=d).sign(),
    "stack of unequal": lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "expand of a size": lambda d: torch.ones(2, device=d).expand(3),
    "gather of a float index": lambda d: torch.ones(2, device=d).gather(0, torch.zeros(2, device=d)),
    "convolution of wrong channels": lambda d: F.conv2d(
        torch.ones(1, 2, 4, 4, device=d), torch.ones(1, 3, 3, 3, device=d)
    ),
    "a softmax over a dimension that is not there": lambda d: torch.ones(4, device=d).softmax(2),
    "the maximum of nothing": lambda d: torch.empty(0, device=d).max(),
    "an empty range of random integers": lambda d: torch.randint(5, 3, (2,), device=d),
    "a float as an index": lambda d: torch.ones(3, device=d)[torch.tensor([0.5], device=d)],
    "topk beyond the size": lambda d: torch.ones(3, device=d).topk(5),
    "a multinomial of zeros": lambda d: torch.multinomial(torch.zeros(0, device=d), 1),
    "a uniform range the wrong way round": lambda d: torch.ones(3, device=d).uniform_(3.0, -1.0),
    "an exponential distribution of a negative rate": lambda d: torch.ones(3, device=d).exponential_(-0.5),
    "a cauchy distribution of a negative width": lambda d: torch.ones(3, device=d).cauchy_(0.0, -0.5),
    "a geometric distribution of an impossible chance": lambda d: torch.ones(3, device=d).geometric_(1.5),
    "a log normal distribution of a negative width": lambda d: torch.ones(3, device=d).log_normal_(0.0, -0.5),
    "a mask of numbers": lambda d: torch.ones(3, device=d).masked_scatter_(
        torch.ones(3, device=d), torch.ones(3, device=d)
    ),
    "a narrow copy of a negative length": lambda d: torch.narrow_copy(torch.ones(3, device=d), 0, 1, -2),
    "a histogram of too few dimensions": lambda d: torch.histogramdd(torch.ones(4, 2, device=d), [3]),
    "a convolution of a negative dilation": lambda d: F.conv2d(
        torch.ones(1, 2, 4, 4, device=d), torch.ones(1, 2, 2, 2, device=d), dilation=-1
    ),
    "a convolution of a negative padding": lambda d: F.conv3d(
        torch.ones(1, 2, 4, 4, 4, device=d), torch.ones(1, 2, 2, 2, 2, device=d), padding=-1
    ),
    "a convolution that does not stride": lambda d: F.conv1d(
        torch.ones(1, 2, 4, device=d), torch.ones(1, 2, 2, device=d), stride=0
    ),
    "complex of two dtypes": lambda d: torch.complex(
        torch.ones(2, device=d), torch.ones(2, dtype=torch.float64, device=d)
    ),
    "complex into another width": lambda d: torch.complex(
        torch.ones(2, device=d), torch.ones(2, device=d), out=torch.zeros(2, dtype=torch.complex128, device=d)
    ),
    "aminmax into another dtype": lambda d: torch.aminmax(
        torch.ones(2, 3, device=d),
        dim=0,
        out=(torch.zeros(3, device=d), torch.zeros(3, dtype=torch.float64, device=d)),
    ),
    "a multinomial into floats": lambda d: torch.multinomial(torch.ones(3, device=d), 2, out=torch.ones(2, device=d)),
    "lists of other lengths": lambda d: torch._foreach_addcmul_(ones(d, 2, 3), ones(d, 2), ones(d, 2, 3)),
    "lists of other sizes": lambda d: torch._foreach_mul_(ones(d, 2, 3), ones(d, 3, 2)),
    "a number for only one of two": lambda d: torch._foreach_div_(ones(d, 2, 3), [2.0]),
    "integers divided in place": lambda d: torch._foreach_div_([t.long() for t in ones(d, 2, 3)], ones(d, 2, 3)),
    "a multilabel loss of too few targets": lambda d: F.multilabel_margin_loss(
        torch.ones(5, 4, device=d), torch.zeros(4, dtype=torch.long, device=d)
    ),
    "an index_add of a source of another shape": lambda d: torch.ones(3, 2, device=d).index_add_(
        0, torch.tensor([0, 2], device=d), torch.ones(2, 3, device=d)
    ),
    "cat into one of its operands": lambda d: (lambda x: torch.cat([x[:1], x[2:]], out=x[:2]))(
        torch.ones(3, 2, device=d)
    ),
    "a gather into its operand": lambda d: into_itself(torch.gather, d, 0, torch.zeros(3, dtype=torch.long, device=d)),
    "a take into its operand": lambda d: into_itself(torch.take, d, torch.zeros(3, dtype=torch.long, device=d)),
    "selected elements into their operand": lambda d: into_itself(
        torch.masked_select, d, torch.ones(3, dtype=torch.bool, device=d)
    ),
    "a bias of another size": lambda d: torch.addmm(
        *ones(d, 5), torch.ones(2, 3, device=d), torch.ones(3, 4, device=d)
    ),
    "a layer's bias of another size": lambda d: F.linear(*ones(d, (2, 3), (4, 3), 5)),
    "a convolution's bias of another size": lambda d: F.conv2d(*ones(d, (1, 2, 4, 4), (3, 2, 3, 3), 4)),
    "a transposed convolution's bias of another size": lambda d: F.conv_transpose1d(*ones(d, (1, 2, 4), (2, 3, 3), 4)),
    "a convolution of doubles by floats": lambda d: F.conv1d(ones(d, (1, 2, 4))[0].double(), *ones(d, (3, 2, 3))),
    "a layer norm of doubles with parameters of floats": lambda d: F.layer_norm(
        torch.ones(2, 3, dtype=torch.double, device=d), [3], *ones(d, 3, 3)
    ),
    "a batch norm of doubles with parameters of floats": lambda d: F.batch_norm(
        torch.ones(2, 3, dtype=torch.double, device=d), *ones(d, 3, 3), training=True
    ),
    "a group norm of doubles with parameters of floats": lambda d: F.group_norm(
        torch.ones(2, 4, dtype=torch.double, device=d), 2, *ones(d, 4, 4)
    ),
    "doubles put among floats": lambda d: ones(d, 3)[0].index_put_(
        (torch.tensor([0], device=d),), torch.ones(1, dtype=torch.double, device=d)
    ),
    "a float as an index that is written to": lambda d: ones(d, 3)[0].index_put_((*ones(d, 1),), *ones(d, 1)),
    "doubles added to floats at indices": lambda d: ones(d, 3)[0].index_add_(
        0, torch.tensor([0], device=d), torch.ones(1, dtype=torch.double, device=d)
    ),
    "a filled mask of numbers": lambda d: ones(d, 3)[0].masked_fill(*ones(d, 3), 0.0),
    "a filled mask of numbers, in place": lambda d: ones(d, 3)[0].masked_fill_(torch.ones(3, device=d).long(), 0.0),
    "elements selected by numbers": lambda d: ones(d, 3)[0].masked_select(*ones(d, 3)),
    "a condition of numbers": lambda d: torch.where(*ones(d, 3, 3, 3)),
    "a float as an index of index_select": lambda d: torch.index_select(*ones(d, 3), 0, *ones(d, 1)),
    "distances of two dtypes": lambda d: torch.cdist(ones(d, (3, 2))[0].double(), *ones(d, (3, 2))),
    "a grid of another dtype": lambda d: F.grid_sample(
        *ones(d, (1, 1, 3, 3)), torch.ones(1, 2, 2, 2, dtype=torch.double, device=d), align_corners=False
    ),
    "the maximum along nothing": lambda d: torch.ones(3, 0, device=d).max(1),
    "the place of the maximum along nothing": lambda d: torch.ones(3, 0, device=d).argmax(1),
    "a negative power of integers": lambda d: torch.tensor([2], device=d) ** -1,
    "the GELU of integers": lambda d: F.gelu(torch.tensor([2], device=d)),
    "the SiLU of integers, in place": lambda d: F.silu(torch.tensor([2], device=d), inplace=True),
    "integers by 0": lambda d: torch.tensor([2], device=d) // 0,
    "integers by 0, in place": lambda d: torch.tensor([2], device=d).div_(0, rounding_mode="trunc"),
    "integers by 0 on the host": lambda d: torch.tensor([2], device=d) // torch.tensor(0),
    "a remainder of integers by 0": lambda d: torch.tensor([2], device=d) % 0,
    "a number with a fraction among integers, in place": lambda d: torch.tensor([2], device=d).mul_(2.5),
    "floats among integers, in place": lambda d: torch.tensor([2], device=d).mul_(*ones(d, 1)),
    "a complex number among floats, in place": lambda d: ones(d, 2)[0].add_(1j),
    "integers among truths, in place": lambda d: truths(d).mul_(2),
    "integers added with a fraction": lambda d: torch.tensor([2], device=d).add(torch.tensor([2], device=d), alpha=1.5),
    "a complex number filled into floats": lambda d: ones(d, 2)[0].fill_(1j),
    "a complex number at an index of floats": lambda d: ones(d, 2)[0].__setitem__(0, 1j),
    "a complex number filled under a mask": lambda d: ones(d, 2)[0].masked_fill(truths(d), 1j),
    "a complex number scattered": lambda d: ones(d, 2)[0].scatter(0, torch.tensor([0], device=d), 1j),
    "a complex number filled at indices": lambda d: ones(d, 2)[0].index_fill(0, torch.tensor([0], device=d), 1j),
    "a remainder of truths": lambda d: torch.remainder(truths(d), truths(d)),
    "the power of truths": lambda d: torch.pow(truths(d), truths(d)),
    "the hypotenuse of integers": lambda d: torch.hypot(*numbers(d, [2], [3])),
    "the fraction of integers": lambda d: torch.tensor([2], device=d).frac_(),
    "decimals of integers": lambda d: torch.tensor([2], device=d).round(decimals=1),
    "between integers": lambda d: torch.lerp(*numbers(d, [2], [3], [1])),
    "the common divisor of floats": lambda d: torch.gcd(*ones(d, 2, 2)),
    "sums of truths, in place": lambda d: truths(d).cumsum_(0),
    "a count of floats": lambda d: torch.bincount(*ones(d, 2)),
    "an unknown reduction at indices": lambda d: ones(d, 2)[0].index_reduce(
        0, torch.tensor([0], device=d), *ones(d, 1), "sum"
    ),
    "integers drawn beyond bytes": lambda d: torch.randint(300, (2,), dtype=torch.uint8, device=d),
    "a transposed convolution of other channels": lambda d: F.conv_transpose1d(*ones(d, (1, 3, 4), (2, 4, 3))),
    "attention of queries and keys of two sizes": lambda d: F.scaled_dot_product_attention(
        *ones(d, (1, 2, 16, 8), (1, 2, 16, 4), (1, 2, 16, 8))
    ),
    "attention of other heads": lambda d: F.scaled_dot_product_attention(
        *ones(d, (2, 3, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8))
    ),
    "attention with a mask of another size": lambda d: F.scaled_dot_product_attention(
        *ones(d, (2, 2, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)), attn_mask=ones(d, (4, 5))[0]
    ),
    "a convolution whose channels groups do not share": lambda d: F.conv1d(*ones(d, (2, 4, 8), (5, 2, 3)), groups=2),
    "an output padding of the stride": lambda d: F.conv_transpose1d(
        *ones(d, (2, 4, 8), (4, 2, 3)), stride=2, output_padding=2
    ),
    "a list of integers by a number with a fraction": lambda d: torch._foreach_mul_([torch.tensor([2], device=d)], 2.5),
    "added true times": lambda d: ones(d, 2)[0].add(*ones(d, 2), alpha=True),
    "a loss that is smooth below 0": lambda d: F.smooth_l1_loss(*ones(d, 2, 2), beta=-1.0),
    "a chance of 2": lambda d: ones(d, 2)[0].bernoulli_(2.0),
    "integers between 0 and 1": lambda d: torch.rand(2, dtype=torch.int64, device=d),
    "buckets of rows": lambda d: torch.bucketize(*ones(d, 2, (2, 3))),
    "a table of other rows": lambda d: torch.searchsorted(*ones(d, (2, 3), (3, 3))),
    "places kept as floats": lambda d: torch.nonzero(*ones(d, 2), out=torch.empty(0, device=d)),
    "selected elements of another dtype": lambda d: torch.index_select(
        *ones(d, 3), 0, torch.tensor([0], device=d), out=torch.ones(1, dtype=torch.double, device=d)
    ),
    "a part of what is written": lambda d: shifted(torch.ones(4, device=d), 1),
    "its own transpose": lambda d: (lambda x: x.copy_(x.T))(torch.ones(3, 3, device=d)),
    "the mean over nothing, of a row": lambda d: F.adaptive_avg_pool1d(*ones(d, (3, 0)), 2),
    "the mean over nothing, of an image": lambda d: F.adaptive_avg_pool2d(*ones(d, (2, 3, 0, 0)), 2),
    "the mean of no channels": lambda d: F.adaptive_avg_pool3d(*ones(d, (2, 0, 4, 4, 4)), 2),
    "the median of nothing": lambda d: ones(d, (0, 3))[0].median(0),
    "the median of nothing but NaN": lambda d: ones(d, (0, 3))[0].nanmedian(0),
    "the mode of nothing": lambda d: ones(d, (0, 3))[0].mode(0),
    "the softmax of integers": lambda d: torch.tensor([1, 2], device=d).softmax(0),
    "the logarithm of a softmax of integers": lambda d: torch.tensor([1, 2], device=d).log_softmax(0),
    "the softmax of truths": lambda d: truths(d).softmax(0),
    "a batch norm of integers": lambda d: F.batch_norm(torch.ones(2, 3, device=d).int(), None, None, training=True),
    "sums of exponentials of integers": lambda d: torch.tensor([1, 2], device=d).logcumsumexp(0),
    "the mean of truths nearby": lambda d: F.avg_pool1d(truths(d)[None, None], 2),
    "the mean of integers nearby": lambda d: F.adaptive_avg_pool2d(torch.ones(1, 2, 2, device=d).long(), 1 + 1),
    "the maximum of truths nearby": lambda d: F.max_pool2d(truths(d).expand(1, 1, 2, 2), 2),
    "a grid over integers": lambda d: F.grid_sample(
        torch.ones(1, 1, 3, 3, device=d).long(), torch.ones(1, 2, 2, 2, device=d).long(), align_corners=False
    ),
    "a larger image of integers": lambda d: F.interpolate(torch.ones(1, 1, 2, 2, device=d).int(), scale_factor=2),
    "a cross product of truths": lambda d: torch.linalg.cross(*[torch.ones(3, device=d).bool()] * 2),
    "a product of truths": lambda d: truths(d)[None] @ truths(d)[:, None],
    "a histogram of truths": lambda d: torch.histogram(truths(d), 3),
    "chances that are complex": lambda d: torch.bernoulli(torch.ones(2, dtype=torch.complex64, device=d)),
    "the greatest of truths": lambda d: truths(d).topk(1),
    "the median of truths": lambda d: truths(d).median(0),
    "a sum of complex numbers but NaN": lambda d: torch.ones(2, dtype=torch.complex64, device=d).nansum(0),
    "a convolution of three strides": lambda d: F.conv2d(*ones(d, (1, 3, 5, 5), (4, 3, 3, 3)), stride=(1, 1, 1)),
    "a convolution of three paddings": lambda d: F.conv2d(*ones(d, (1, 3, 5, 5), (4, 3, 3, 3)), padding=(1, 1, 1)),
    "a convolution of three dilations": lambda d: F.conv2d(*ones(d, (1, 3, 5, 5), (4, 3, 3, 3)), dilation=(1, 1, 1)),
    "a convolution of two strides": lambda d: F.conv1d(*ones(d, (1, 3, 5), (4, 3, 3)), stride=(1, 1)),
    "half of integers beside an outer product": lambda d: torch.addr(
        *[t.long() for t in ones(d, (2, 2), 2, 2)], beta=0.5
    ),
    "half an outer product of integers": lambda d: torch.addr(*[t.int() for t in ones(d, (2, 2), 2, 2)], alpha=0.5),
    "true times beside an outer product": lambda d: torch.addr(*ones(d, (2, 2), 2, 2), beta=True),
    "more put than places": lambda d: ones(d, 6)[0].put_(torch.tensor([0, 1], device=d), *ones(d, 3)),
    "one put into nothing": lambda d: ones(d, 0)[0].put_(torch.tensor([0], device=d), *ones(d, 1)),
    "one put at an int32": lambda d: ones(d, 3)[0].put_(torch.tensor([0], device=d).int(), *ones(d, 1)),
    "a row of another size scattered": lambda d: torch.select_scatter(*ones(d, (4, 4), 3), 0, 1),
    "one for a row scattered": lambda d: torch.select_scatter(*ones(d, (4, 4), 1), 0, 1),
    "a diagonal of another size scattered": lambda d: torch.diagonal_scatter(*ones(d, (4, 4), 3)),
    "integers drawn below -1": lambda d: ones(d, 3)[0].random_(-1),
    "integers drawn from below bytes": lambda d: ones(d, 3)[0].to(torch.int8).random_(-200, 3),
    "random integers from below bytes": lambda d: torch.randint(-129, 3, (2,), dtype=torch.int8, device=d),
    "integers drawn beyond half precision": lambda d: torch.randint(2**30, (2,), dtype=torch.half, device=d),
    "an endless uniform range": lambda d: ones(d, 3)[0].uniform_(0, math.inf),
    "a uniform range beyond half precision": lambda d: ones(d, 3)[0].half().uniform_(0, 1e6),
    "a byte of 300": lambda d: torch.full((2,), 300, dtype=torch.uint8, device=d),
    "a float beyond float32": lambda d: torch.full((2,), 1e39, device=d),
    "a number beyond int32": lambda d: torch.full((2,), 2**40, dtype=torch.int32, device=d),
    "a NaN among integers": lambda d: torch.ones(2, device=d).long().fill_(math.nan),
    "a masked byte of 300": lambda d: torch.ones(2, device=d).to(torch.int8).masked_fill(truths(d), 300),
    "a chosen byte of 300": lambda d: torch.where(truths(d), torch.ones(2, device=d).to(torch.int8), 300),
    "a scattered byte of 300": lambda d: torch.ones(2, device=d).byte().scatter(0, torch.tensor([1], device=d), 300),
    "a byte of 300 at an index": lambda d: (
        torch.ones(2, device=d).byte().index_fill(0, torch.tensor([1], device=d), 300)
    ),
    "a padding beyond float32": lambda d: F.pad(*ones(d, 2), (1, 1), value=1e39),
    "a bound beyond float32": lambda d: ones(d, 2)[0].clamp(max=1e39),
    "a permutation beyond bytes": lambda d: torch.randperm(300, dtype=torch.uint8, device=d),
    "a permutation beyond half precision": lambda d: torch.randperm(3000, dtype=torch.half, device=d),
    "channels last of three dims": lambda d: torch.empty(3, 3, 3, memory_format=torch.channels_last, device=d),
    "channels last of a tensor of three dims": lambda d: ones(d, (3, 3, 3))[0].contiguous(
        memory_format=torch.channels_last
    ),
    "channels last of a copy of five dims": lambda d: ones(d, (1,) * 5)[0].clone(memory_format=torch.channels_last),
    "channels of a volume last of four dims": lambda d: torch.empty_like(
        *ones(d, (3, 3, 3, 3)), memory_format=torch.channels_last_3d
    ),
    "a part added to its whole": lambda d: whole(d, lambda x, i: x.index_add_(0, i, x[1:4])),
    "a part copied to its whole": lambda d: whole(d, lambda x, i: x.index_copy_(0, i, x[1:4])),
    "a part put into its whole": lambda d: whole(d, lambda x, i: x.index_put_((i,), x[1:4])),
    "an index that is filled at itself": lambda d: (lambda x: x.index_fill_(0, x, 5))(torch.arange(6, device=d)),
    "an index put at itself": lambda d: (lambda x: x.put_(x, x))(torch.arange(6, device=d)),
    "an index scattered at itself": lambda d: (lambda x: x.scatter_(0, x, x))(torch.arange(6, device=d)),
    "a sum scattered into itself": lambda d: (lambda x: x.scatter_add_(0, torch.arange(6, device=d), x))(
        torch.arange(6, device=d)
    ),
    "a mask that is written": lambda d: (lambda x: x[1:].masked_fill_(x[:-1], True))(truths(d).repeat(3)),
    "selected elements beside themselves": lambda d: whole(d, lambda x, i: torch.index_select(x, 0, i, out=x[:3])),
    "a choice beside itself": lambda d: whole(d, lambda x, i: torch.where(i > 0, x[:3], x[:3] + 1, out=x[1:4])),
    "sums beside themselves": lambda d: whole(d, lambda x, i: torch.cumsum(x[:-1], 0, out=x[1:])),
    "products beside themselves": lambda d: whole(d, lambda x, i: torch.cumprod(x[:-1], 0, out=x[1:])),
    "an unknown side of a table": lambda d: torch.searchsorted(*ones(d, 3, 3), side="foo"),
    "two sides of a table": lambda d: torch.searchsorted(*ones(d, 3, 3), side="left", right=True),
    "places in a table as int32": lambda d: torch.searchsorted(*ones(d, 3, 3), out=torch.zeros(3, device=d).int()),
    "buckets as int32": lambda d: torch.bucketize(*ones(d, 3, 3), out=torch.zeros(3, device=d).int()),
    "a table ordered by floats": lambda d: torch.searchsorted(*ones(d, 3, 3), sorter=torch.ones(3, device=d)),
    "a float taken from a truth": lambda d: torch.rsub(*ones(d, 1), True),
    "sorted into another dtype": lambda d: torch.sort(
        *ones(d, 3), out=(ones(d, 3)[0].double(), torch.zeros(3, device=d).long())
    ),
    "exponents of int64": lambda d: torch.frexp(*ones(d, 3), out=(*ones(d, 3), torch.zeros(3, device=d).long())),
    "copied at an int32": lambda d: ones(d, 3)[0].index_copy_(0, torch.tensor([0], device=d).int(), *ones(d, 1)),
    "filled at an int32": lambda d: ones(d, 3)[0].index_fill_(0, torch.tensor([0], device=d).int(), 1.0),
    "added at a float": lambda d: ones(d, 3)[0].index_add_(0, *ones(d, 1, 1)),
    "a histogram the wrong way round": lambda d: torch.histogram(*ones(d, 3), 3, range=(3.0, 1.0)),
    "a histogram of too few weights": lambda d: torch.histogram(*ones(d, 3), 3, weight=torch.ones(2, device=d)),
    "a histogram of no bins": lambda d: torch.histogram(*ones(d, 3), 0),
    "normal numbers of another size": lambda d: torch.normal(*ones(d, 5), 1.0, out=torch.ones(3, device=d)),
}


def whole(device, change):
    return change(torch.arange(1.0, 7.0, device=device), torch.arange(3, device=device))


def shifted(x, by):
    x[by:] = x[:-by]
    return x


def truths(device):
    return torch.ones(2, dtype=torch.bool, device=device)


def ones(device, *sizes):
    return [torch.ones(n, device=device) for n in sizes]


def test_what_looks_wrong_and_is_not(device):
    """Half precision with parameters of float32, bytes as a condition, and dims of no elements beside others."""
    norm = F.layer_norm(torch.ones(2, 3, dtype=torch.bfloat16, device=device), [3], *ones(device, 3, 3))
    assert norm.dtype == torch.bfloat16
    assert torch.tensor([2.0], device=device).mul_(torch.tensor([3], device=device)).item() == 6
    assert torch.tensor([2], dtype=torch.int8, device=device).add_(torch.tensor([3], device=device)).item() == 5
    assert torch.remainder(torch.tensor([5], device=device), truths(device)).tolist() == [0, 0]
    assert torch.randint(255, 256, (1,), dtype=torch.uint8, device=device).item() == 255
    assert torch.where(torch.ones(2, dtype=torch.uint8, device=device), *ones(device, 2, 2)).sum().item() == 2
    assert torch.ones(0, 3, device=device).max(1).values.shape == (0,)
    assert (torch.tensor([2.0], device=device) ** -1).item() == 0.5
    assert (torch.tensor([2.0], device=device) // 0).item() == float("inf")
    assert (torch.tensor([2], device=device) / 0).item() == float("inf")
    assert (torch.ones(0, dtype=torch.int64, device=device) // 0).shape == (0,)
    assert ones(device, (0, 3))[0].median(1).values.shape == (0,)
    assert F.interpolate(torch.ones(1, 1, 2, 2, device=device).byte(), scale_factor=2).sum().item() == 16
    assert torch.full((2,), -1, dtype=torch.uint8, device=device).tolist() == [255, 255]
    assert torch.full((2,), -math.inf, device=device).tolist() == [-math.inf] * 2
    assert torch.ones(2, device=device).to(torch.int8).clamp(max=300.5).tolist() == [1, 1]
    assert torch.ones(2, device=device).to(torch.int8).random_(-128, 128).shape == (2,)
    assert sorted(torch.randperm(256, dtype=torch.uint8, device=device).tolist()) == list(range(256))
    assert whole(device, lambda x, i: x[:3].index_add_(0, i, x[3:])).tolist() == [5, 7, 9]
    assert whole(device, lambda x, i: torch.cumsum(x, 0, out=x)).tolist() == [1, 3, 6, 10, 15, 21]
    assert whole(device, lambda x, i: x.masked_fill_(x > 1, x[0])).tolist() == [1] * 6
    assert whole(device, lambda x, i: x.put_(i, x.clone()[3:])).tolist() == [4, 5, 6, 4, 5, 6]
    assert torch.addr(*ones(device, (2, 2), 2, 2), beta=0.5).tolist() == [[1.5, 1.5]] * 2
    assert shifted(torch.arange(6, device=device), 3).tolist() == [0, 1, 2, 0, 1, 2]  # apart


def into_itself(function, device, *args):
    x = torch.ones(3, device=device)
    return function(x, *args, out=x)


def test_a_distribution_is_checked_at_each_call(device):
    x = torch.ones(3, device=device)
    x.uniform_(0.0, 1.0)
    with pytest.raises(RuntimeError, match="uniform_ expects"):
        x.uniform_(1.0, 0.0)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_raises_what_eager_raises(device, name, recwarn):
    with pytest.raises(Exception) as expected:  # the CPU says which
        WRONG[name]("cpu")
    with pytest.raises(expected.type) as raised:
        WRONG[name](device)
    assert not [w for w in recwarn if "no lowering" in str(w.message)], "it is refused, not the host's"
    # A device that is named is the tensor's; a kernel's name ("bitwise_and_cpu") stays eager's own.
    assert first_line(raised) == re.sub(r"\bcpu\b", device, first_line(expected))
    assert torch.ones(2, device=device).sum().item() == 2


def first_line(raised: pytest.ExceptionInfo) -> str:
    return str(raised.value).splitlines()[0]


def test_tensors_of_two_devices_do_not_mix(device):
    if device == "cpu":
        pytest.skip("needs two devices")
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device=device) + torch.ones(2)
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(2, 2, device=device) @ torch.ones(2, 2)


def test_a_zero_dimensional_cpu_tensor_mixes(agrees):
    agrees(lambda device: torch.ones(2, device=device) * torch.tensor(3.0))


def test_an_error_in_the_middle_leaves_earlier_work_intact(device):
    x = torch.ones(3, device=device) * 2
    with pytest.raises(RuntimeError):
        x + torch.ones(4, device=device)
    assert (x + 1).tolist() == [3, 3, 3]


@pytest.mark.parametrize("decompose", [torch.linalg.eigvalsh, torch.linalg.svd, torch.linalg.pinv])
def test_what_does_not_converge_raises_at_the_call(device, decompose):
    """So that a script can catch it and do something else."""
    with pytest.raises(torch.linalg.LinAlgError, match="failed to converge"):
        decompose(torch.full((3, 3), math.nan, device=device))


def test_what_follows_an_error_of_the_host_is_computed(device, any_window):
    """A window goes on behind an op that raised in it, as eager does where the error is caught."""
    if device == "cpu":
        pytest.skip("raises at the call")
    bad = torch.linalg.ldl_factor_ex(torch.ones(2, 2, dtype=torch.half, device=device)).LD
    good = torch.arange(4.0, device=device) * 2 + 1
    with contextlib.suppress(NotImplementedError):  # at the first read, whichever it is
        bad.tolist()
    assert good.tolist() == [1, 3, 5, 7]


def test_numpy_needs_a_cpu_tensor(device):
    if device == "cpu":
        pytest.skip("the cpu has numpy")
    with pytest.raises(TypeError, match="cpu"):
        torch.ones(2, device=device).numpy()


def rows(device):
    return torch.ones(5, 3, device=device)


NUMBERS = {
    "a probability above 1": lambda d: F.binary_cross_entropy(*numbers(d, [0.5, 1.5], [1.0, 1.0])),
    "a target below 0": lambda d: F.binary_cross_entropy(*numbers(d, [0.5, 0.5], [1.0, -1.0])),
    "a chance above 1": lambda d: torch.bernoulli(*numbers(d, [0.5, 1.5])),
    "a chance that is no number": lambda d: torch.bernoulli(*numbers(d, [float("nan"), 0.5])),
    "a negative deviation": lambda d: torch.normal(0.0, *numbers(d, [1.0, -1.0])),
    "a negative deviation beside a mean": lambda d: torch.normal(*numbers(d, [0.0, 0.0], [1.0, -1.0])),
    "a negative rate": lambda d: torch.poisson(*numbers(d, [1.0, -1.0])),
    "a first bag that begins late": lambda d: F.embedding_bag(*numbers(d, [0, 1]), rows(d), *numbers(d, [1])),
    "fewer elements than places": lambda d: ones(d, 2)[0].masked_scatter(truths(d), *ones(d, 1)),
    "a floor of a quotient by 0": lambda d: torch.floor_divide(*numbers(d, [4, 4], [2, 0])),
    "a quotient by 0": lambda d: torch.div(*numbers(d, [4, 4], [2, 0]), rounding_mode="trunc"),
    "a remainder by 0": lambda d: torch.remainder(*numbers(d, [4, 4], [2, 0])),
    "a quotient by a 0 without dims": lambda d: torch.floor_divide(*numbers(d, [4, 4], 0)),
    "a number's quotient by 0": lambda d: 4 // torch.tensor([2, 0], device=d),
    "a remainder by 0 in place": lambda d: torch.Tensor.fmod_(*numbers(d, [4, 4], [2, 0])),
    "a pivot beyond the rows": lambda d: torch.lu_unpack(torch.eye(3, device=d), pivots(d, [1, 2, 100]))[0],
    "a pivot of 0": lambda d: torch.lu_unpack(torch.eye(3, device=d), pivots(d, [1, 0, 3]))[0],
    "segments longer than the data": lambda d: torch.segment_reduce(
        *numbers(d, [1.0, 2.0]), "sum", lengths=torch.tensor([2, 9], device=d)
    ),
    "a segment of negative length": lambda d: torch.segment_reduce(
        *numbers(d, [1.0, 2.0]), "sum", lengths=torch.tensor([4, -2], device=d), unsafe=True
    ),
}


def pivots(device, rows):
    return torch.tensor(rows, dtype=torch.int32, device=device)


def numbers(device, *rows):
    return [torch.tensor(row, device=device) for row in rows]


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_eager_refuses_raise_at_the_next_read(device, any_window, name):
    with pytest.raises(RuntimeError) as expected:
        NUMBERS[name]("cpu")
    refused = NUMBERS[name](device)
    with pytest.raises(RuntimeError) as raised:
        refused.tolist()
    said, _, where = first_line(raised).partition(" (aten.")
    assert first_line(expected).startswith(said) and "test_errors.py" in where
    assert torch.ones(2, device=device).sum().item() == 2


def test_numbers_that_eager_takes(device):
    """A mean below 0 is no deviation, floats may be divided by 0, and a seed is no chance."""
    assert torch.normal(*numbers(device, [-1.0, 1.0]), 1.0).shape == (2,)
    assert torch.normal(*numbers(device, [-1.0], [0.0])).tolist() == [-1.0]
    assert torch.bernoulli(*numbers(device, [0.0, 1.0])).tolist() == [0.0, 1.0]
    assert torch.zeros(3, device=device).bernoulli_(1.0).tolist() == [1.0] * 3
    assert torch.floor_divide(*numbers(device, [4.0], [0.0])).tolist() == [float("inf")]
    assert F.binary_cross_entropy(*numbers(device, [0.0, 1.0], [0.0, 1.0])).item() == 0


CHANCES = {
    "negative": [1.0, -1, 1],
    "endless": [1.0, float("inf"), 1],
    "no number": [1.0, 1, float("nan")],
    "none": [0.0, 0, 0],
    "none in a row": [[1.0, 2, 1], [0, 0, 0]],
}


@pytest.mark.parametrize("picks", [1, 2])
@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("name", CHANCES)
def test_chances_that_are_none_raise_at_the_next_read(device, any_window, name, replacement, picks):
    with pytest.raises(RuntimeError) as expected:
        torch.multinomial(torch.tensor(CHANCES[name]), picks, replacement)
    picked = torch.multinomial(torch.tensor(CHANCES[name], device=device), picks, replacement)
    with pytest.raises(RuntimeError) as raised:
        picked.tolist()
    assert first_line(raised).startswith(f"{first_line(expected)} (aten.multinomial.default at ")
    assert torch.multinomial(torch.tensor([0.0, 1, 0], device=device), 1).tolist() == [1]


# Calls with an index of two numbers, one of which lies outside, and the least of it that eager names too.
OUTSIDE = {
    "index": lambda x, i: x[i],
    "index of the second dim": lambda x, i: x[:, i],
    "index_put_": lambda x, i: x.index_put_((i,), torch.zeros((), device=x.device)),
    "setitem": lambda x, i: x.__setitem__((slice(None), i), 2.0),
    "gather": lambda x, i: x.gather(1, i[None]),
    "scatter_ of a value": lambda x, i: x.scatter_(0, i[:, None], 1.0),
    "scatter_": lambda x, i: x.scatter_(0, i[:, None], torch.ones(2, 1, device=x.device)),
    "scatter_add_": lambda x, i: x.scatter_add_(0, i[:, None], torch.ones(2, 1, device=x.device)),
    "scatter_reduce_": lambda x, i: x.scatter_reduce_(0, i[:, None], torch.ones(2, 1, device=x.device), "amax"),
    "index_select": lambda x, i: x.index_select(0, i),
    "embedding": lambda x, i: F.embedding(i, x),
    "index_add_": lambda x, i: x.index_add_(0, i, torch.ones(2, 3, device=x.device)),
    "index_copy_": lambda x, i: x.index_copy_(0, i, torch.ones(2, 3, device=x.device)),
    "index_fill_": lambda x, i: x.index_fill_(0, i, 3.0),
    "index_reduce_": lambda x, i: x.index_reduce_(0, i, torch.ones(2, 3, device=x.device), "prod"),
    "take": lambda x, i: x.take(i),
    "put_": lambda x, i: x.put_(i, torch.ones(2, device=x.device)),
    "nll_loss": lambda x, i: F.nll_loss(x[:2], i),
    "cross_entropy": lambda x, i: F.cross_entropy(x[:2], i),
    "nll_loss of images": lambda x, i: F.nll_loss(x[:1, :, None, None].repeat(1, 1, 1, 2), i[None, None]),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x[:2], i),
    "embedding_bag": lambda x, i: F.embedding_bag(i[None], x),
    "max_unpool1d": lambda x, i: F.max_unpool1d(x[:1, None, :2], i[None, None], 2),
}  # fmt: skip
# Eager says it in other words; of an index of the second dim only, it says "dimension 0".
OWN_WORDS = {"index of the second dim", "setitem", "multi_margin_loss", "embedding_bag", "max_unpool1d"}


@pytest.fixture(params=[1, 8, None], ids=["window 1", "window 8", "the default window"])
def any_window(request, device):
    if device == "cpu":
        pytest.skip("the cpu raises at the call")
    with torch.lazy.window(request.param) if request.param else contextlib.nullcontext():
        yield


@pytest.mark.parametrize("far", [77, -77])
@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_outside_raises_at_the_next_read(device, any_window, name, far):
    call = OUTSIDE[name]
    with pytest.raises((IndexError, RuntimeError)) as expected:
        call(rows("cpu"), torch.tensor([1, far]))
    x = rows(device)
    index = torch.tensor([1, far], device=device)
    call(x, index)  # the call itself says nothing
    line = call.__code__.co_firstlineno
    with pytest.raises((IndexError, RuntimeError)) as raised:
        torch.ones(2, device=device).tolist()
    text = first_line(raised)
    assert f"test_errors.py:{line} in " in text and "aten." in text and str(far) in text, text
    if name not in OWN_WORDS:
        assert raised.type is expected.type, (raised.type, text)
        assert text.startswith(first_line(expected)), (text, first_line(expected))
    # it is said once, and the device works on
    assert (torch.arange(3, device=device) + 1).tolist() == [1, 2, 3]
    assert call(rows("cpu"), torch.tensor([0, 1])) is None or torch.equal(
        call(rows(device), torch.tensor([0, 1], device=device)).cpu(), call(rows("cpu"), torch.tensor([0, 1]))
    )


INSIDE = {
    "negative indices": lambda d: torch.arange(10.0, device=d).reshape(5, 2)[torch.tensor([-5, -1, 4], device=d)],
    "negative indices of a write": lambda d: torch.zeros(5, device=d).index_put_(
        (torch.tensor([-5, -1], device=d),), torch.ones(2, device=d)
    ),
    "take of negative indices": lambda d: torch.arange(6.0, device=d).take(torch.tensor([-6, 5], device=d)),
    "ignored targets": lambda d: F.cross_entropy(
        torch.ones(3, 4, device=d), torch.tensor([0, -100, 3], device=d)
    ),
    "targets ignored by another number": lambda d: F.nll_loss(
        torch.ones(3, 4, device=d), torch.tensor([0, 9, 3], device=d), ignore_index=9
    ),
    "the embedding of padding": lambda d: F.embedding(
        torch.tensor([0, 4, 2], device=d), torch.arange(10.0, device=d).reshape(5, 2), padding_idx=4
    ),
    "no indices": lambda d: torch.ones(0, 3, device=d)[torch.tensor([], dtype=torch.long, device=d)],
    "positions that were found": lambda d: torch.arange(6.0, device=d).reshape(2, 3).gather(
        1, torch.tensor([[1.0, 3, 2], [6, 5, 4]], device=d).argsort(1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INSIDE)
def test_an_index_inside_raises_nothing(agrees, any_window, name):
    agrees(INSIDE[name])


def test_of_several_errors_the_first_is_raised_and_the_others_are_dropped(device, any_window):
    table = torch.arange(5.0, device=device)
    one = table[torch.tensor([1, 50], device=device)]
    two = table.gather(0, torch.tensor([2, 60], device=device))
    with pytest.raises(
        IndexError, match=r"index 50 is out of bounds for dimension 0 with size 5 \(aten.index.Tensor at "
    ):
        (one + two).sum().item()
    assert table.sum().item() == 10
    table.gather(0, torch.tensor([70], device=device))
    with pytest.raises(RuntimeError, match="index 70 is out of bounds"):
        torch.lazy.synchronize()
    torch.lazy.synchronize()


def test_no_memory_but_the_tensor_s_own_is_written(device, any_window):
    whole = torch.zeros(3, 4, device=device)
    whole[1].index_put_((torch.tensor([0, 4_000_000, -4_000_000], device=device),), torch.ones((), device=device))
    whole[1].scatter_(0, torch.tensor([1, 4_000_000, -4_000_000], device=device), 1.0)
    with pytest.raises(IndexError):
        torch.lazy.synchronize()
    assert whole[0].tolist() == whole[2].tolist() == [0] * 4


def test_an_index_outside_in_the_middle_of_training(device, any_window):
    """The step's other work is done, the error comes at the loss's read, and the next step trains."""
    table = torch.nn.Embedding(5, 3, device=device)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    def step(*tokens):
        optimizer.zero_grad()
        loss = table(torch.tensor(tokens, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    first = step(0, 1).item()
    wrong = step(0, 5)
    with pytest.raises(
        IndexError, match=r"index out of range in self: 5, of 5 \(aten.embedding.default at .*in step\)"
    ):
        wrong.item()
    assert step(0, 1).item() < first


def test_more_checks_than_words_between_two_reads(device):
    """The words of checks are looked at when they are all in use, and an error from before is not lost."""
    if device == "cpu":
        pytest.skip("the cpu raises at the call")
    table, good = torch.arange(5.0, device=device), torch.tensor([1, 2], device=device)
    table[torch.tensor([5], device=device)]
    for _ in range(5000):  # csrc/checks.cpp, kWords
        table = table.clone()
        table[good]
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        table.tolist()
    assert table.tolist() == [0, 1, 2, 3, 4]


def test_an_index_outside_raises_where_the_host_runs_the_window(device):
    """Sizes that come once run op by op on the host, whose kernels look for themselves."""
    if device == "cpu":
        pytest.skip("the cpu raises at the call")

    def picked(size, *indices):
        return torch.arange(float(size)).to(device)[torch.tensor(indices).to(device)] * 2

    before = torch.lazy.stats()["ops_interpreted"]
    for size in range(20, 29):
        assert picked(size, 1, size - 1).tolist() == [2, 2 * size - 2]
    if torch.lazy.stats()["ops_interpreted"] == before:
        pytest.skip("the host does not see this device's memory")
    with pytest.raises(
        IndexError, match=r"index 29 is out of bounds for dimension 0 with size 29 \(aten.*index.Tensor at "
    ):
        picked(29, 1, 29).tolist()
    assert torch.ones(2, device=device).sum().item() == 2


def test_an_index_into_nothing_raises(device, any_window):
    nothing, index = torch.ones(0, 3, device=device), torch.tensor([[7]], device=device)
    nothing.gather(0, index)
    with pytest.raises(RuntimeError, match="index 7 is out of bounds for dimension 0 with size 0"):
        torch.lazy.synchronize()


@pytest.mark.filterwarnings("ignore:aten.copy_.default runs on the CPU")
def test_a_dtype_without_kernels_is_cast_by_the_host(device, caplog):
    """8-bit floats: eager's numbers, and nothing is logged as a failure."""
    x = torch.linspace(-3, 3, 9)
    rounded = x.to(device).to(torch.float8_e4m3fn)
    assert torch.equal(rounded.to(torch.float32).cpu(), x.to(torch.float8_e4m3fn).to(torch.float32))
    assert "failed" not in caplog.text
