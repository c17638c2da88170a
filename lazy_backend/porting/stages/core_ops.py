"""Stage 4: each core op gives what its NumPy reference gives, in every dtype, on contiguous and strided tensors."""

from __future__ import annotations

import contextlib
from functools import partial

import numpy as np

from lazy_backend.porting.bench import Bench, CheckFailed, NotOffered

from . import Check

# One unit in the last place of these is what the table asks for; rounding wrongly is a finding, not noise.
ROUNDED = frozenset({"add", "sub", "mul", "neg", "abs", "sqrt", "floor", "ceil", "trunc", "round", "convert"})
HALF_ULP = {"f16": 2.0**-11, "bf16": 2.0**-8}


def more_checks() -> list[Check]:
    """A check for each structural op and each scalar function."""
    from lazy_backend.porting import core_cases

    return [Check(name, f"core op {name}", partial(run_cases, name=name), 300) for name in core_cases.names()]


def run_cases(b: Bench, name: str) -> str:
    """Every case of one op; fails with all the dtypes that are wrong."""
    from lazy_backend.driver.errors import Unsupported
    from lazy_backend.porting import core_cases

    wrong: dict[str, str] = {}
    refused: dict[str, str] = {}
    count = library = 0
    for case in core_cases.cases(name):
        dtype = case.inputs[0].dtype if case.inputs else case.outputs[0]
        if not b.caps.has_f64 and "f64" in (dtype, *case.outputs):
            continue
        count += 1
        try:
            text = compare(b, case)
        except (Unsupported, NotImplementedError) as error:
            refused[dtype] = str(error)
            continue
        if name in b.entries:
            with contextlib.suppress(Unsupported):  # what the library refuses stays generated
                text = text or compare(b, case, library=True)
                library += 1
        if text:
            wrong.setdefault(dtype, text)
    if wrong:
        raise CheckFailed(f"{', '.join(wrong)}: {next(iter(wrong.values()))}")
    if refused:
        raise NotOffered(f"core op {name} for {', '.join(refused)}: {next(iter(refused.values()))}")
    return f"{count} cases" + (f", {library} of them also through the library's entry" if library else "")


def compare(b: Bench, case: object, library: bool = False) -> str:
    """Run one case, through the library's entry or not; what is wrong with its outputs, or nothing."""
    from lazy_backend.porting import core_cases
    from lazy_backend.porting.execute import Runner, from_memory, to_memory
    from ops_core import interpret

    assert isinstance(case, core_cases.Case)
    graph, memory, kinds = case.graph()
    raw = {slot: to_memory(values, kinds[slot]) for slot, values in memory.items()}
    mems = {slot: b.upload(data) for slot, data in raw.items()}
    sizes = {slot: data.nbytes for slot, data in raw.items()}
    Runner(b, graph, mems, sizes, extern=lambda node: library and node.op == case.op).run()
    interpret.run(graph, memory)
    for slot in range(len(case.inputs), len(memory)):
        got = from_memory(b.get(mems[slot], raw[slot].size, raw[slot].dtype), kinds[slot])
        if text := difference(case, got, memory[slot], kinds[slot]):
            return f"the library's entry: {text}" if library else text
    return ""


def difference(case: object, got: np.ndarray, want: np.ndarray, dtype: str) -> str:
    """What differs, with the likeliest cause."""
    from lazy_backend.porting import core_cases

    assert isinstance(case, core_cases.Case)
    kind = np.dtype(got.dtype).kind
    if kind != "f":
        wrong = got != want
    else:
        finite = np.abs(want[np.isfinite(want)])
        scale = np.max(finite, initial=1e-30)
        fn = case.attrs.get("fn", case.op)
        if fn in ROUNDED and dtype in HALF_ULP:
            allowed = np.abs(want) * HALF_ULP[dtype] * 0.5 + 1e-30
        else:
            allowed = core_cases.TOLERANCE[dtype] * (np.abs(want) + 0.1 * scale)
        with np.errstate(invalid="ignore"):
            wrong = ~((np.abs(got - want) <= allowed) | (got == want) | (np.isnan(got) & np.isnan(want)))
    if not wrong.any():
        return ""
    at = int(np.flatnonzero(wrong)[0])
    transposed = any(x.transposed for x in case.inputs)
    cause = _cause(case, got, want, wrong, transposed)
    attrs = {k: v for k, v in case.attrs.items() if k != "fn"}
    layout = "strided inputs" if transposed else "contiguous inputs"
    return (
        f"{dtype} {attrs or ''} on {layout}: {wrong.sum()} of {wrong.size} wrong, element {at} is {got[at]} "
        f"and should be {want[at]}{cause}"
    )


def _cause(case: object, got: np.ndarray, want: np.ndarray, wrong: np.ndarray, transposed: bool) -> str:
    if got.dtype.kind == "f" and np.allclose(got[wrong], want[wrong], rtol=0.02, atol=0.02):
        return ": a rounding (to nearest, ties to even, once)"
    if not got.any():
        return ": nothing was written"
    if transposed and np.array_equal(np.sort(got), np.sort(want)):
        return ": the right values in the wrong places: strides"
    return ""
