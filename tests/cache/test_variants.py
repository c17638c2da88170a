"""Sizes that vary become arguments: few kernels for many sizes, and right for each of them."""

import pytest
import torch
import torch.nn.functional as F

import benchmarks.decode
from lazy_backend import sized, variants
from lazy_backend.variants import Sized, Text, parametrised

HEAD = "module attributes {dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>} {\n"


def kernel(name, constants, body):
    lines = "".join(f"  %c{i} = arith.constant {value}\n" for i, value in enumerate(constants))
    return f"{HEAD}gpu.func @{name}(%a0: memref<?xf32>) kernel {{\n{lines}{body}}}\n}}\n"


def rows(n):
    """a kernel over n rows of 8: at n = 8 both sizes are one constant, and the next ones are numbered otherwise"""
    if n == 8:
        return kernel("k8", ["8 : index", "1.0 : f32"], "  use %c0, %c0, %c1\n")
    return kernel(f"k{n}", [f"{n} : index", "8 : index", "1.0 : f32"], "  use %c0, %c1, %c2\n")


def test_a_size_that_equals_another_constant_is_told_apart():
    sized = Sized()
    made = []
    for n in (7, 8, 9, 8, 30):
        text = Text.of(rows(n), f"k{n}")
        form = sized.form(text)
        made.append(parametrised(rows(n), "k", text, form.classes) if form else None)
    assert made[0] is None
    assert [m.extra for m in made[1:]] == [((n, "i32"),) for n in (8, 9, 8, 30)]
    assert len({m.mlir for m in made[1:]}) == 1
    assert "%s0: index" in made[1].mlir and "use %s0, %c0, %c1" in made[1].mlir
    assert made[1].mlir.count("arith.constant") == 2


def test_what_varied_before_varies_again():
    """a batch that changes after the length did gives one more form, with both"""
    sized = Sized()
    texts = [
        Text.of(kernel("k", [f"{a} : index", f"{b} : index"], "  use %c0, %c1\n"), "k")
        for a, b in ((5, 2), (6, 2), (7, 3), (8, 9), (4, 4))
    ]
    forms = [sized.form(text) for text in texts]
    assert [f and len(f.classes) for f in forms] == [None, 1, 2, 2, 2] and len(sized.forms) == 2


def test_a_vector_of_a_size_is_a_broadcast_argument():
    def text(n):
        return kernel("k", [f"{n} : index", f"dense<{n}> : vector<8xindex>"], "  use %c0, %c1\n")

    sized = Sized()
    sized.form(Text.of(text(5), "k"))
    last = Text.of(text(6), "k")
    made = parametrised(text(6), "k", last, sized.form(last).classes)
    assert made.extra == ((6, "i32"),)
    assert "%s0v8 = vector.broadcast %s0 : index to vector<8xindex>" in made.mlir and "use %s0, %s0v8" in made.mlir


def test_a_float_that_a_size_makes_is_an_argument():
    """a mean divides by its size: f32 constants are written as their bits"""

    def text(bits):
        return kernel("k", [f"0x{bits} : f32", f"dense<0x{bits}> : vector<4xf32>"], "  use %c0, %c1\n")

    sized = Sized()
    sized.form(Text.of(text("42E00000"), "k"))
    last = Text.of(text("40A00000"), "k")
    made = parametrised(text("40A00000"), "k", last, sized.form(last).classes)
    assert made.extra == ((5.0, "f32"),)
    assert "%s0: f32" in made.mlir and "%s0v4 = vector.broadcast %s0 : f32 to vector<4xf32>" in made.mlir


# With how many kernels of 16 sizes; 16 would be one each. The rest are widths of vectors: of 4, 8 and 16, and tails.
PROGRAMS = {
    "elementwise": (2, lambda x: (x * 2 + 1).relu() - x.mean()),
    "softmax": (11, lambda x: x.softmax(-1)),
    "layer norm": (4, lambda x: F.layer_norm(x.transpose(-1, -2), (8,))),
    "growing cat": (10, lambda x: torch.cat([x, x[..., :1]], -1) * 0.5),
    "transposed": (7, lambda x: x.transpose(-1, -2).contiguous() + 1),
    "window": (11, lambda x: x.unfold(-1, 3, 1).sum(-1)),
}
SIZES = (6, 9, 7, 8, 10, 5, 23, 16, 11, 31, 17, 12, 29, 3, 40, 64)


@pytest.mark.parametrize("name", PROGRAMS)
def test_many_sizes_need_few_kernels(device, monkeypatch, name):
    """16 lengths, each compiled when it comes: kernels are shared, and right for every length"""
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    monkeypatch.setattr(variants, "MAX_COMPILED", 1 << 30)
    most, program = PROGRAMS[name]
    before = torch.lazy.stats()["kernels_built"]
    for n in SIZES:
        x = torch.linspace(-2, 3, 2 * 8 * n).reshape(2, 8, n)
        torch.testing.assert_close(program(x.to(device)).cpu(), program(x), rtol=1e-5, atol=1e-5)
    assert torch.lazy.stats()["kernels_built"] - before <= most


def decode(device, turns):
    """Rows (1, 24) by turn, and on lazy the counters of each."""
    torch.manual_seed(0)
    w, x = (torch.randn(24, 24) / 5).to(device), torch.ones(1, 24, device=device)
    cache = torch.zeros(0, 24, device=device)
    rows, stats = [], []
    for _ in range(turns):
        torch.lazy.reset_stats()
        q = torch.tanh(x @ w)
        cache = torch.cat([cache, q])
        x = torch.sigmoid((torch.softmax(q @ cache.T, -1) @ cache) @ w + x)
        rows.append(x.cpu())
        stats.append(torch.lazy.stats())
    return torch.cat(rows), stats


def test_decoding_runs_one_plan_for_all_lengths(device):
    """a cache grows by a row each turn: after some turns nothing is built, and nothing runs on the host"""
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    rows, stats = decode(device, 30)  # at 24 rows the cache has the shape of w: no reason for another plan
    torch.testing.assert_close(rows, decode("cpu", 30)[0], rtol=1e-4, atol=1e-5)
    late = stats[12:]
    assert all(s["plans_compiled"] == s["kernels_built"] == s["host_ops"] == s["ops_interpreted"] == 0 for s in late)
    assert len({(s["windows"], s["kernels_launched"]) for s in late}) == 1, "the same every turn"
    assert late[0]["kernels_launched"]


def test_decoding_with_attention_compiles_nothing_after_the_first_tokens(device, monkeypatch):
    """keys and values grow by a token, past the width of a vector and the depth of a head (32): one trace serves all"""
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    traced, trace = [], sized.Trace
    monkeypatch.setattr(sized, "Trace", lambda *args: traced.append(args) or trace(*args))
    chosen, rows = benchmarks.decode.decode(device, 40)
    assert chosen == benchmarks.decode.decode("cpu", 40)[0]
    late = [{name: row[name] for name in benchmarks.decode.COLUMNS} for row in rows[5:]]
    assert len(traced) == 2, "one that foretells, and one that confirms it"
    assert all(row == late[0] for row in late), "the same every token"
    assert late[0]["plans_compiled"] == late[0]["kernels_built"] == late[0]["ops_interpreted"] == 0


def test_lengths_below_a_vector_do_not_keep_longer_ones_from_their_plan(device):
    """some tiles fit one or two lengths only; none of the others is compiled or run op by op for their sake"""
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    w = torch.linspace(-1, 1, 24 * 24).reshape(24, 24)
    built = {}
    for n in (5, 6, 7, 9, 4, 3, 8, 23, 24, 25, 48, 12, 72):
        x = torch.linspace(-2, 3, n * 24).reshape(n, 24)
        y, v = x.to(device), w.to(device)
        torch.lazy.synchronize()
        torch.lazy.reset_stats()
        torch.testing.assert_close(((y @ v) @ (y @ v).t()).cpu(), (x @ w) @ (x @ w).t(), rtol=1e-4, atol=1e-3)
        stats = torch.lazy.stats()
        built[n] = stats["kernels_built"] + stats["ops_interpreted"]
    assert not any(built[n] for n in (7, 23, 24, 25, 48, 12, 72)), built
