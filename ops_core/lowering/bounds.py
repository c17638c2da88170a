"""Indices that are read from memory: checked against the size of what they index, and kept inside it. Other numbers
of which eager refuses some: chances, deviations, divisors of integers.

`checked` appends a `check` node, which has no result: a window's compiler turns it into a word that the device writes
and the host looks at when it next reads; the NumPy interpreter raises at once.
"""

from __future__ import annotations

from ops_core import array as A
from ops_core.array import Arr, where

# Eager's exception and words for each kind of index. {index}: the one that lies outside, {size}: what it indexes has so
# many elements. Both are filled in when an error is raised, so that windows whose sizes vary have one text.
_PLACE = "index {index} is out of bounds for dimension {dim} with size {size}"
ERRORS = {
    "index": ("IndexError", _PLACE),
    "gather": ("RuntimeError", _PLACE),
    "index_copy": ("IndexError", "index_copy_(): " + _PLACE),
    "select": ("IndexError", "index out of range in self: {index}, of {size}"),
    "take": ("IndexError", "out of range: tried to access index {index} on a tensor of {size} elements."),
    "target": ("IndexError", "Target {index} is out of bounds."),
    "margin": ("RuntimeError", "target out of range: {index}, of {size}"),
    "bag": ("RuntimeError", "Index of input takes value {index} which is not in the valid range [0, {size})"),
    "probability": ("RuntimeError", "probability tensor contains either `inf`, `nan` or element < 0"),
    "negative chance": ("RuntimeError", "invalid multinomial distribution (encountering probability entry < 0)"),
    "endless chance": (
        "RuntimeError",
        "invalid multinomial distribution (encountering probability entry = infinity or NaN)",
    ),
    "no chance": ("RuntimeError", "invalid multinomial distribution (sum of probabilities <= 0)"),
    "input share": ("RuntimeError", "all elements of input should be between 0 and 1"),
    "target share": ("RuntimeError", "all elements of target should be between 0 and 1"),
    "bernoulli": ("RuntimeError", "Expected p_in >= 0 && p_in <= 1 to be true, but got false."),
    "deviation": ("RuntimeError", "normal expects all elements of std >= 0.0"),
    "division": ("RuntimeError", "ZeroDivisionError"),
    "pivots": (
        "RuntimeError",
        "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive."
        "Did you properly pass the result of lu_factor?",
    ),
    "poisson": ("RuntimeError", "invalid Poisson rate, expected rate to be non-negative"),
    "first bag": (
        "RuntimeError",
        "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0.",
    ),
    "histogram": ("RuntimeError", "torch.histc: the range of its elements is not finite"),
    "masked source": ("RuntimeError", "Number of elements of source < number of ones in mask"),
    "segment length": ("RuntimeError", "Expected segment_length >= 0 to be true, but got false."),
    "segments": (
        "RuntimeError",
        "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when !unsafe.",
    ),
    "unpool": ("RuntimeError", "Found an invalid max index: {index} (output volumes are of size {size})"),
}


def wrap(index: Arr, size: int) -> Arr:
    """Indices as i64, negative ones counted from the end."""
    index = index.to("i64")
    return where(index < 0, index + size, index)


def clamp(index: Arr, size: int) -> Arr:
    """Indices as i64 moved into 0 .. size - 1, so that no kernel touches other memory; as they are where size is 0."""
    index = index.to("i64")
    return A.map_("minimum", A.map_("maximum", index, 0), size - 1) if size else index


def checked(index: Arr, size: int, error: str, dim: int = 0, negative: bool = False) -> Arr:
    """Indices along a dim of `size` as i64, inside it. Where one is not, error `error` is raised at the next read.

    negative: those from -size on are allowed, and counted from the end.
    """
    index = index.to("i64")
    if index.numel:
        raises, text = ERRORS[error]
        text = text.replace("{dim}", str(dim))
        A.emit_multi("check", [index], [], low=-size if negative else 0, size=size, raises=raises, text=text)
    return clamp(wrap(index, size) if negative else index, size)


def between_0_and_1(x: Arr, error: str) -> None:
    """Raise error `error` at the next read where an element is not a share of 1."""
    required((x >= 0) & (x <= 1), error)


def required(condition: Arr, error: str) -> None:
    """Raise error `error` at the next read where `condition` does not hold."""
    if condition.numel:
        raises, text = ERRORS[error]
        A.emit_multi("check", [where(condition, 0, 1).to("i64")], [], low=0, size=1, raises=raises, text=text)
