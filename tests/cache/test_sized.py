"""Sizes that vary from window to window: after the first few, nothing is built and nothing runs on the host."""

import itertools
import math
import random
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lazy_backend.compiler import library
from lazy_backend.numbering import numbers, renumbered
from lazy_backend.sized import Traces
from ops_core.sizes import Traced, alike

WIDTH, HEADS, WORDS, LONGEST = 16, 2, 32, 40
MADE = ("plans_compiled", "kernels_built", "ops_interpreted", "host_ops")


@pytest.fixture(autouse=True)
def compiled(device):
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    with torch.lazy.window(512):
        yield


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, dropout):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + F.dropout(self.out(y.transpose(1, 2).reshape(b, t, WIDTH)), dropout)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layer, self.head = Layer(), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, dropout):
        x = self.word(tokens) + self.place.weight[: tokens.shape[1]]
        return self.head(self.layer(x, dropout))


def train(device, shapes, dropout):
    """Losses and, on lazy, the counters of each step: AdamW, another learning rate in every step."""
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    data, losses, stats = torch.Generator().manual_seed(1), [], []
    for batch, length in shapes:
        tokens = torch.randint(0, WORDS, (batch, length + 1), generator=data).to(device)
        if device != "cpu":
            torch.lazy.reset_stats()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1], dropout).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        stats.append(torch.lazy.stats() if device != "cpu" else {})
    return losses, stats


def shapes(steps):
    draw = random.Random(3)
    return [(draw.randint(2, 5), draw.randint(8, LONGEST)) for _ in range(steps)]


def test_training_builds_nothing_after_the_second_new_length(device):
    """with dropout, a learning rate that changes, random lengths and batch sizes; the first step makes the optimizer's
    state and is another structure, so that the second new length is that of the fourth step"""
    met = shapes(24)
    assert len(set(met)) > 20
    losses, stats = train(device, met, 0.1)
    assert all(0 < loss < 6 for loss in losses)
    assert [[s[name] for name in MADE] for s in stats[4:]] == [[0] * len(MADE)] * 20
    assert {s["windows"] for s in stats[4:]} == {1}


def test_losses_are_eager_s_whatever_the_sizes(device):
    met = shapes(12)
    torch.testing.assert_close(train(device, met, 0.0)[0], train("cpu", met, 0.0)[0], rtol=1e-4, atol=1e-4)


def masked_attention(x, bias=0.0):
    at = torch.arange(x.shape[2], device=x.device)
    mask = (at[:, None] * 7 + at * 3) % 5 > 0
    return F.scaled_dot_product_attention(x, x * 0.5, x + 1, attn_mask=mask * bias if bias else mask)


PROGRAMS = {
    "attention": lambda n: lambda x: F.scaled_dot_product_attention(x, x * 0.5, x + 1, is_causal=True),
    "attention under a mask": lambda n: masked_attention,
    "attention with a bias": lambda n: lambda x: masked_attention(x, 0.3),
    "attention of fewer queries": lambda n: lambda x: F.scaled_dot_product_attention(x[:, :, 4:], x * 0.5, x + 1),
    "cumulative sum, sort": lambda n: lambda x: x.cumsum(2) + x.sort(dim=2)[0],
    "places of an order": lambda n: (
        lambda x: x.topk(5, 2)[0].sum(2) + x.kthvalue(n // 3, 2)[0] + x.median(2)[0] + x.topk(n // 2, 2)[0].prod(2)
    ),
    "reductions along both": lambda n: lambda x: x.softmax(2) * x.amax(-1, keepdim=True) / x.var(2, keepdim=True),
    "views": lambda n: lambda x: torch.cat([x.transpose(2, 3).flatten(2), x[:, :, 1:-1, ::2].flatten(2)], 2).roll(3, 2),
    "gather": lambda n: lambda x: x.gather(2, torch.arange(n, device=x.device).flip(0)[:, None].expand(1, 2, n, 16)),
    "padding": lambda n: lambda x: F.avg_pool2d(F.pad(x, (1, 2, 3, 0)), 2) if n > 8 else x,
}


PRODUCTS = {
    "scores": lambda x: x @ x.transpose(-2, -1),
    "sums of rows": lambda x: (x @ x.transpose(-2, -1)).softmax(-1) @ x,
    "rows": lambda x: x @ x[:, 0, :4].transpose(-2, -1),
    "added in place": lambda x: (x @ x.transpose(-2, -1)).mul(0.5).add_((x * 2) @ x.transpose(-2, -1)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_sizes_below_a_tile(device, name):
    """with columns that vary tiles overlap, and what is added to memory may be added once only"""
    for n in (9, 21, 12, 1, 3, 5, 8, 13, 2, 4, 37, 16, 100):
        data = torch.linspace(-1, 1, 3 * n * 12).sin().reshape(3, 1, n, 12)
        x, y = data.clone().requires_grad_(), data.to(device).requires_grad_()
        if name == "rows" and n < 4:
            continue
        outs = [PRODUCTS[name](z) for z in (x, y)]
        for z in outs:
            (z * z).sum().backward()
        torch.testing.assert_close(outs[1].detach().cpu(), outs[0].detach(), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=1e-3, atol=1e-3)


def test_large_products_do_not_keep_the_tiles_of_the_first_small_one(device):
    """they have a trace of their own, for all large ones, whose tiles are wide; small ones keep theirs"""
    built = []
    for m, k, n in ((16, 24, 40), (20, 31, 33), (256, 256, 257), (270, 300, 255), (700, 2500, 100), (24, 50, 41)):
        x, w = torch.randint(-8, 9, (m, k)).float(), torch.randint(-8, 9, (k, n)).float()
        a, b = x.to(device), w.to(device)
        torch.lazy.synchronize()
        torch.lazy.reset_stats()
        out = (a @ b).neg()  # a product by itself would be of a kind with those of one of its sizes
        torch.testing.assert_close(out.cpu(), -(x @ w), rtol=0, atol=0)
        built.append(torch.lazy.stats()["kernels_built"])
    assert built == [1, 1, 1, 0, 1, 0]  # the fifth: more rows of B than are packed at a time


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_for_all_sizes_is_right_for_each(device, name):
    """results and gradients, for sizes around those of vectors and tiles"""
    for turn, n in enumerate((19, 30, 41, 33, 64, 47, 17, 48, 16, 65, 97)):
        data = torch.linspace(-1, 1, 2 * n * 16).sin().reshape(1, 2, n, 16)
        torch.lazy.reset_stats()
        results = []
        for where in ("cpu", device):
            x = data.detach().to(where).requires_grad_()
            y = PROGRAMS[name](n)(x)
            (y * y).sum().backward()
            results.append((y.detach().cpu(), x.grad.cpu()))
        torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-3)
        assert "attention" not in name or turn < 3 or torch.lazy.stats()["kernels_built"] == 0


def test_a_window_is_its_structure_and_its_numbers():
    node = (
        "aten.mul.Tensor",
        [("tensor", 0, 6, (4, 5), (5, 1), 0), 2, True, 0.5, [3, None], ("scalar", 0, 1), ("enum", 6)],
        [("tensor", 1, 6, (4, 5), (5, 1), 0)],
        (("scalar", 1, 1), ("scalar", 2, 1)),
        "x",
    )
    source = {"nodes": [node], "slots": [(80, True, True), (80, True, False)]}
    assert numbers(source) == [4, 5, 5, 1, 0, 2, 3, 4, 5, 5, 1, 80, 80]
    assert renumbered(source, lambda n: n) == source
    doubled = renumbered(source, lambda n: 2 * n)
    assert doubled["slots"][0] == (160, True, True) and doubled["nodes"][0][1][0][3] == (8, 10)


def test_python_is_not_asked_once_a_trace_is_believed(device, monkeypatch):
    """the recorder's numbers are then put into the trace in C++; another relation of sizes is Python's again"""
    from lazy_backend import compiler

    asked = []
    monkeypatch.setattr(compiler, "foretold", asked.append)
    data = torch.linspace(-1, 1, 8000)

    def program(where, n, more):
        rows = data.to(where)[: 5 * n].view(5, n)
        return torch.cat([rows.t(), rows[:, more:].t()]).softmax(0) + rows.sum(1) * rows.amax(1)

    def differs(n, more=1):
        before = len(asked)
        torch.testing.assert_close(program(device, n, more).cpu(), program("cpu", n, more))
        return len(asked) - before

    assert [differs(n) for n in (100, 200, 310, 410)] != [0] * 4
    assert [differs(n) for n in (520, 77, 640, 111, 1024, 35)] == [0] * 6
    assert differs(300, more=40) == 1


def test_a_trace_is_believed_when_another_foretells_its_plan():
    """and is good for the relations between sizes that it was made with only"""

    def source(n, m):
        return {"device": 0, "nodes": [("op", [("tensor", 0, 6, (n, m), (m, 1), 0)], [], None, "")],
                "slots": [(4 * n * m, True, True)], "scalars": [], "ordered": False}  # fmt: skip

    def compile(window):
        n, m = window.nodes[0].args[0][3]
        rows = 1 if n > 8 else 2
        steps = [("launch", 7, (n * rows, 1, 1), (1, 1, 1), [("bytes", m, "i32")])]
        return {"pieces": [4 * n], "temps": [(0, 0)], "steps": steps, "checks": [], "once": False}

    traces = Traces()
    assert traces.plan(source(10, 3), compile) is None, "the first is compiled as it is"
    assert traces.plan(source(20, 3), compile)["steps"][0][2] == (20, 1, 1)
    assert not traces.traces[0].confirmed
    plan = traces.plan(source(30, 3), compile)
    assert plan["steps"][0][2] == (30, 1, 1) and plan["pieces"] == [120]
    assert plan["sized"]["spots"] == [("global", 0, 0), ("piece", 0, 0)]
    assert [trace.confirmed for trace in traces.traces] == [True, True]
    assert traces.foretold(numbers(source(11, 3)))["steps"][0][2] == (11, 1, 1)
    assert traces.foretold(numbers(source(4, 3))) is None, "a guard does not hold"
    assert traces.foretold(numbers(source(11, 4))) is None, "what did not vary varies"
    odd = source(11, 3) | {"slots": [(4, True, True)]}
    assert traces.foretold(numbers(odd)) is None, "sizes that belonged together do not"
    assert traces.plan(source(4, 5), compile)["steps"][0][2:] == ((8, 1, 1), (1, 1, 1), [("bytes", 5, "i32")])


def number_source(*numbers):
    return {"device": 0, "nodes": [("op", list(numbers), [], None, "")], "slots": [], "scalars": [], "ordered": False}


def launch(*sizes):
    return {"pieces": [], "temps": [], "steps": [("launch", 7, sizes, (1, 1, 1), [])], "checks": [], "once": False}


def test_numbers_that_change_one_by_one_come_to_vary_together():
    """as shares of experts do; what was a constant in one trace and varies in the next is no disagreement"""

    def compile(window):
        arguments = [("bytes", n, "i32") for n in window.nodes[0].args if isinstance(n, Traced)]
        return launch(*window.nodes[0].args) | {"pieces": [len(arguments)]}

    traces = Traces()
    now = [10, 20, 30, 40]
    for turn in range(12):
        now[turn % 4] += 1 + turn // 4
        if traces.foretold(now) is None:
            traces.plan(number_source(*now), compile)
    assert traces.made == 8, "one for each that varies too, then one for each that has varied in two alike"
    plan = traces.foretold([100, 7, 9, 1000])
    assert plan["steps"][0][2] == (100, 7, 9, 1000) and plan["pieces"] == [4]


def test_what_two_sizes_share_by_accident_decides_nothing():
    """the first and the third window have a number twice, and no other does"""

    def compile(window):
        a, b = window.nodes[0].args
        return launch(a, b, 1 if alike((a,), (b,)) else 2)

    traces = Traces()
    for a, b in (5, 5), (6, 9), (7, 7), (8, 3):
        traces.plan(number_source(a, b), compile)
    assert traces.made == 3 and all(trace.confirmed for trace in traces.traces)
    assert [traces.foretold([n, 20])["steps"][0][2] for n in (20, 21)] == [(20, 20, 2), (21, 20, 2)]


def test_experts_of_ever_other_shares_build_nothing(device):
    """a router that leaves each expert another number of rows in each step"""
    if device == "cpu":
        pytest.skip("counts what the device builds")
    draw = torch.Generator().manual_seed(5)
    weights = [torch.randn(16, 16, generator=draw) for _ in range(5)]

    def step(where, x, chosen):
        out = torch.zeros_like(x)
        for number, weight in enumerate(weights):
            rows = torch.where(chosen == number)[0]
            out.index_add_(0, rows, torch.tanh(x[rows] @ weight.to(where)) * 0.5)
        return (out * x).sum(1)

    for turn in range(16):
        x, chosen = torch.randn(150, 16, generator=draw), torch.randint(5, (150,), generator=draw)
        torch.lazy.reset_stats()
        got = step(device, x.to(device), chosen.to(device)).cpu()
        assert turn < 4 or torch.lazy.stats()["kernels_built"] == 0, turn
        torch.testing.assert_close(got, step("cpu", x, chosen), rtol=1e-4, atol=1e-4)


def test_traces_that_disagree_are_given_up():
    def source(n):
        return {"device": 0, "nodes": [("op", [n], [], None, "")], "slots": [], "scalars": [], "ordered": False}

    def compile(window):
        hidden = int.__add__(window.nodes[0].args[0], 0)  # a number that leaves the tape
        steps = [("launch", 7, (hidden, 1, 1), (1, 1, 1), [])]
        return {"pieces": [], "temps": [], "steps": steps, "checks": [], "once": False}

    traces = Traces()
    plans = [traces.plan(source(n), compile) for n in (3, 4, 5, 6, 7)]
    assert plans[1]["steps"][0][2] == (4, 1, 1) and plans[2:] == [None] * 3
    assert not traces.traces[0].confirmed


def test_a_trace_holds_for_the_numbers_that_two_traces_agreed_about():
    """A number that leaves the tape and was the same in both may be another's reason for a plan of another kind."""

    def source(n, turns):
        return {"device": 0, "nodes": [("op", [n, turns], [], None, "")], "slots": [], "scalars": [], "ordered": False}

    def compile(window):
        n, turns = window.nodes[0].args
        steps = [("launch", 7, (n, 1, 1), (1, 1, 1), []) for _ in range(turns)]
        return {"pieces": [], "temps": [], "steps": steps, "checks": [], "once": False}

    traces = Traces()
    for n, turns in (10, 3), (20, 4), (31, 4):
        traces.plan(source(n, turns), compile)
    assert len(traces.foretold(numbers(source(50, 4)))["steps"]) == 4
    assert traces.foretold(numbers(source(50, 5))) is None
    # csrc/python_plan.cpp is told so too.
    assert (1, 4) in traces.foretold(numbers(source(50, 4)))["sized"]["fixed"]
    assert traces.plan(source(50, 5), compile) is None, "five turns, where four were foretold"


@pytest.mark.parametrize("window", [1, 512])
def test_a_dim_is_not_a_size(device, window):
    """Sizes that vary, and a dim that does, in one structure; it came with the same dim in two traces."""
    with torch.lazy.window(window) if device != "cpu" else nullcontext():
        for rows, dim in (3, 0), (9, 1), (27, 1), (5, 0), (6, 1), (28, 0), (3, 1):
            x = torch.arange(2 * rows).reshape(rows, 2).float()
            for op in lambda t: t.flip(dim), lambda t: t.cumsum(dim), lambda t: t.roll(1, dim):  # noqa: B023
                assert torch.equal(op(x.to(device)).cpu(), op(x)), (rows, dim)


def test_a_warm_start_needs_no_other_kernels_than_the_first(device):
    """The first size's plan lies in the cache, and is one of the two sizes that a trace takes."""
    from lazy_backend import _C, compiler

    if device == "cpu" or compiler.capabilities(0).level == 1:
        pytest.skip("builds no kernels")

    def steps():
        for n in (19, 33, 47, 61):
            x = torch.linspace(-1, 1, 8 * n).view(8, n)
            got = (x.to(device).softmax(-1) * 3).cumsum(-1).cpu()
            torch.testing.assert_close(got, (x.softmax(-1) * 3).cumsum(-1))

    steps()
    for _ in range(4):
        compiler.forget()
        _C.forget_plans(0)
        torch.lazy.reset_stats()
        steps()
        assert torch.lazy.stats()["kernels_built"] == 0


def test_the_library_takes_sizes_that_vary(device, own):
    """images of further sizes build no kernel, and their convolutions are the library's as before"""
    torch.manual_seed(0)
    w, v = torch.randn(32, 16, 3, 3), torch.randn(32, 32, 3, 3)

    def net(n, where):
        x = torch.linspace(-1, 1, 4 * 16 * n * (n + 2)).reshape(4, 16, n, n + 2).to(where)
        weights = [t.clone().to(where).requires_grad_() for t in (w, v)]
        y = F.conv2d(F.conv2d(x, weights[0], None, 1, 1).relu(), weights[1], None, 2, 1)
        (y * 0.1).square().mean().backward()
        return [t.cpu() for t in (y.detach(), *(t.grad for t in weights))]

    built = []
    for n in (40, 56, 48, 64, 44, 52):
        torch.lazy.reset_stats()
        for a, b in zip(net(n, device), net(n, "cpu"), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3 * b.abs().max().item())
        stats = torch.lazy.stats()
        built.append(stats["kernels_built"])
        assert stats["host_ops"] == 0
        assert stats["extern_calls"] == (5 if library(0) else 0)
    assert built[3:] == [0, 0, 0]


def test_what_a_decomposition_gave_in_one_trace_is_not_taken_in_another(device, agrees):
    """torch's own trilinear upsampling, alone and then with a gradient: two structures, each traced, of equal sizes"""
    pairs = [((4, 4, 4), (3, 3, 3)), ((4, 4, 4), (5, 5, 5)), ((4, 3, 5), (3, 2, 4)), ((4, 3, 5), (5, 4, 6))]

    def program(where):
        found = []
        for gradient, aligned in itertools.product((False, True), (True, False)):
            for given, wanted in pairs:
                x = torch.arange(6.0 * math.prod(given)).sin().reshape(2, 3, *given).to(where)
                x.requires_grad_(gradient)
                y = F.interpolate(x, size=wanted, mode="trilinear", align_corners=aligned)
                found += torch.autograd.grad(y, x, torch.ones_like(y)) if gradient else [y]
                found[-1] = found[-1].cpu()
        return found

    agrees(program, rtol=1e-4, atol=1e-4)


IMAGE, VOLUME = torch.linspace(-1, 1, 24).view(1, 3, 4, 2), torch.linspace(-1, 1, 24).view(1, 2, 2, 2, 3)


def volume(x, align_corners):
    return F.grid_sample(x[:12].reshape(1, 1, 3, 4, -1), VOLUME.to(x), align_corners=align_corners)


# Ops whose lowerings reckon with a size, or name it in an error.
READERS = {
    "index": lambda x: x[torch.arange(len(x), device=x.device).flip(0)],
    "gather": lambda x: x.gather(0, torch.arange(len(x) - 1, -1, -1, device=x.device)[:, None].expand(len(x), 5)),
    "embedding": lambda x: F.embedding(torch.arange(7, device=x.device), x),
    "places in a table": lambda x: torch.searchsorted(torch.arange(len(x), device=x.device) / len(x), x) + x,
    "nearest": lambda x: F.interpolate(x[None, None], scale_factor=2),
    "bilinear": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x[None, None], size=(2 * len(x), 9), mode="bicubic", align_corners=True),
    "grid sample": lambda x: F.grid_sample(x[None, None], IMAGE.to(x.device), align_corners=False),
    "volume": lambda x: volume(x, align_corners=False),
    "volume in bf16": lambda x: volume(x.bfloat16(), align_corners=True).float(),
}


@pytest.mark.parametrize("name", READERS)
def test_further_sizes_build_nothing(device, name):
    """also where a lowering reckons with a size, or an error would name it"""
    built = []
    for n in (45, 61, 77, 52, 83, 70):
        x = torch.linspace(-1, 1, n * (n + 1)).sin().reshape(n, n + 1)
        torch.lazy.reset_stats()
        rtol = 0.05 if "bf16" in name else 1e-4
        torch.testing.assert_close(READERS[name](x.to(device)).cpu(), READERS[name](x), rtol=rtol, atol=rtol)
        built.append(torch.lazy.stats()["kernels_built"] + torch.lazy.stats()["ops_interpreted"])
    assert built[-2:] == [0, 0]


def test_an_error_names_the_size_of_its_own_window(device):
    def row(x, i):
        return x.to(device)[torch.tensor([i]).to(device)].cpu()

    for n in (45, 61, 77, 52):
        x = torch.rand(n, 3)
        assert torch.equal(row(x, n - 1), x[n - 1 :])
    torch.lazy.reset_stats()
    with pytest.raises(IndexError, match="index 83 is out of bounds for dimension 0 with size 83"):
        row(torch.rand(83, 3), 83)
    assert torch.lazy.stats()["plans_compiled"] == 0
