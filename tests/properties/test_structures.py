"""A script whose windows never come again runs op by op, at once; one whose windows do is compiled whole."""

import contextlib
import random

import pytest
import torch

from lazy_backend import _C
from tests.integration.process import run_python
from tests.properties.programs import programs, run

WIDTH = 24
# Turns of a script of branches after which the credit for new windows is used up, whatever it was.
TURNS = 60


@pytest.fixture(autouse=True)
def as_a_script(device):
    """Without what tests have: that every window is compiled."""
    if device == "cpu":
        pytest.skip("the cpu has no windows")
    _C.compile_all(False)
    with torch.lazy.window(512):
        yield
    _C.compile_all(True)


@contextlib.contextmanager
def compiled_whole():
    for _ in range(2):
        _C.compile_all(True)
    yield
    for _ in range(2):
        _C.compile_all(False)


def branches(draw, x, weight):
    """A loop whose turns are drawn: twenty or more of two kinds of ops, in any order."""
    for _ in range(draw.randrange(20, 30)):
        x = (x @ weight).tanh() if draw.random() < 0.5 else x * 0.5 + 1
    return x.sum()


def inputs(place):
    return torch.linspace(-1, 1, WIDTH * WIDTH).view(WIDTH, WIDTH).to(place), torch.eye(WIDTH).flip(0).to(place)


@pytest.fixture
def used_up(device):
    """Windows were new so often that one more is not compiled."""
    draw = random.Random(1)
    for _ in range(TURNS):
        branches(draw, *inputs(device)).item()
    torch.lazy.reset_stats()


@pytest.fixture
def op_by_op(as_a_script):
    """No window is compiled that has no plan."""
    torch.lazy.synchronize()
    _C.compile_all(False)
    torch.lazy.reset_stats()
    yield
    torch.lazy.synchronize()
    _C.compile_all(True)


def test_a_script_of_branches_makes_no_more_plans(device, used_up):
    draw, other = random.Random(2), random.Random(2)
    for _ in range(20):
        got, want = branches(draw, *inputs(device)), branches(other, *inputs("cpu"))
        torch.testing.assert_close(got.cpu(), want)
    stats = torch.lazy.stats()
    assert stats["windows_op_by_op"] == stats["windows"] == 20
    assert stats["plans_compiled"] + stats["plans_assembled"] == 0
    assert stats["kernels_launched"] == stats["ops"]


def test_a_loop_that_comes_after_it_is_compiled_whole(device, used_up):
    def step():
        x, weight = inputs(device)
        for _ in range(16):
            x = x * 0.5 + weight
        return x.sum().item()

    want = step()
    for _ in range(8):
        assert step() == pytest.approx(want)
    torch.lazy.reset_stats()
    step()
    stats = torch.lazy.stats()
    assert stats["windows_op_by_op"] == 0 and stats["kernels_launched"] == 1


def test_credit_comes_back_while_windows_are_known(device, used_up):
    """What was known gives back 1/128 of its ops: so many turns are worth three windows of 30 ops."""
    x, _ = inputs(device)
    for _ in range(3 * 128 * 7):
        for _ in range(64):
            x = x * 0.5
        torch.lazy.synchronize()
    torch.lazy.reset_stats()
    draw = random.Random(3)
    for _ in range(3):
        branches(draw, *inputs(device)).item()
    assert torch.lazy.stats()["windows_op_by_op"] == 0


def test_a_first_step_of_many_windows_is_compiled_whole(device):
    """In a new process: some thirty windows, each of other ops than those before."""
    program = """
import torch
x = torch.ones(8, 8).to("lazy")
for turn in range(32):
    for op in range(30):
        x = x * 0.5 if turn >> op % 5 & 1 else x + 1
    x.sum().item()
print(torch.lazy.stats()["windows_op_by_op"], torch.lazy.stats()["windows"])
"""
    assert run_python(program, {}).split() == ["0", "32"]


def test_a_window_of_new_calls_is_compiled_though_credit_is_used_up(device, used_up):
    x = torch.ones(5, 7, device=device)
    for _ in range(5):
        x = (x - 3).exp() / 2
    x.sum().item()
    assert torch.lazy.stats()["windows_op_by_op"] == 0


def test_random_programs_give_the_same_as_compiled_whole(device, op_by_op):
    from hypothesis import HealthCheck, given, settings

    by_op = []

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(program=programs("unary", "floating", "binary", "view", "inplace", "read"))
    def agree(program):
        torch.lazy.reset_stats()
        got = run(program, device, torch.float32)
        by_op.append(torch.lazy.stats()["windows_op_by_op"])
        with compiled_whole():
            want = run(program, device, torch.float32)
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)

    agree()
    assert sum(by_op) > 3


def test_lists_are_done_member_by_member(device, op_by_op):
    """Whichever parameters have a gradient, a step of an optimizer has the plans of a step before."""

    def train(place):
        draw = random.Random(5)
        parameters = [torch.linspace(-1, 1, WIDTH).to(place).requires_grad_() for _ in range(8)]
        optimizer = torch.optim.AdamW(parameters, lr=0.1, foreach=True)
        for step in range(12):
            if place != "cpu" and step == 6:
                torch.lazy.synchronize()
                torch.lazy.reset_stats()
            optimizer.zero_grad()
            for parameter in draw.sample(parameters, draw.randrange(2, 8)):
                (parameter * 2).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
            optimizer.step()
            if place != "cpu":
                torch.lazy.synchronize()
        return [parameter.detach().cpu() for parameter in parameters]

    got = train(device)
    assert torch.lazy.stats()["windows_op_by_op"] == 6
    assert torch.lazy.stats()["plans_compiled"] + torch.lazy.stats()["plans_assembled"] <= 8  # norms of so many
    torch.testing.assert_close(got, train("cpu"))


def test_draws_are_the_same(device, op_by_op):
    def drawn():
        torch.manual_seed(7)
        x = torch.nn.functional.dropout(torch.ones(WIDTH, device=device), 0.5)
        for _ in range(12):
            x = x + torch.rand(WIDTH, device=device)
        return (x * torch.randn(WIDTH, device=device)).cpu()

    got = drawn()
    assert torch.lazy.stats()["windows_op_by_op"] == 1
    with compiled_whole():
        want = drawn()
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_a_wrong_index_names_its_line(device, op_by_op):
    x, _ = inputs(device)
    for _ in range(16):
        x = x * 0.5
    row = x[torch.tensor([WIDTH], device=device)]
    with pytest.raises(IndexError, match=rf"out of bounds .*{__file__}"):
        (row * 2 + 1).cpu()
    assert torch.lazy.stats()["windows_op_by_op"] == 1
    assert (x * 0 + 1).sum().item() == WIDTH * WIDTH


def test_intermediates_go_back_as_soon_as_in_a_whole_window(device, op_by_op):
    x = torch.ones(1 << 20, device=device)
    torch.lazy.synchronize()
    torch.lazy.reset_peak_memory_stats()
    before = torch.lazy.memory_allocated()
    for _ in range(16):
        x = x.cumsum(0) * 0.5
    x.sum().item()
    assert torch.lazy.stats()["windows_op_by_op"] == 1
    assert torch.lazy.max_memory_allocated() - before <= 4 * x.nbytes


def test_a_list_that_grows_is_no_new_window_at_each_length(device):
    """Keys of a decoder in a list: windows of seven ops, each of which comes once, but not what its ops need."""
    draw = torch.Generator().manual_seed(2)
    weight, rows, known, built = torch.randn(8, 8, generator=draw), [], [], []
    on_device = weight.to(device)
    for _ in range(40):
        x = torch.randn(1, 8, generator=draw)
        torch.lazy.reset_stats()
        y = x.to(device)
        rows.append(y @ on_device)
        keys = torch.cat(rows)
        got = ((y @ keys.T).softmax(-1) @ keys).cpu()
        built.append(torch.lazy.stats()["kernels_built"])
        known.append(x @ weight)
        keys = torch.cat(known)
        torch.testing.assert_close(got, (x @ keys.T).softmax(-1) @ keys, rtol=1e-4, atol=1e-5)
    assert torch.lazy.stats()["windows_op_by_op"] == 1
    assert sum(built[12:]) <= 4, built  # a length that is the first of a class: a vector's width, a tile


def test_concatenations_of_any_length_have_the_plans_of_copies(device, op_by_op):
    """Of parts of one size, where each lies in its result: aligned, so that one plan knows all places."""

    def joined(where, many):
        rows = [torch.full((2, 16), float(i), device=where) for i in range(many)]
        mixed = [row.to(torch.int32) if i % 2 else row for i, row in enumerate(rows)]
        wide = torch.cat([*mixed, torch.ones(3, 16, device=where), torch.ones(0, device=where), rows[0][:0]])
        return torch.cat([row.T for row in rows], -1).sum(1), torch.stack(rows, 1).sum(0), wide.cumsum(0)

    for many in range(9, 40, 2):
        torch.lazy.reset_stats()
        got = [x.cpu() for x in joined(device, many)]
        stats = torch.lazy.stats()
        assert stats["windows_op_by_op"] >= 1
        for x, want in zip(got, joined("cpu", many), strict=True):
            torch.testing.assert_close(x, want, rtol=0, atol=0)
    assert stats["plans_compiled"] == 0
    assert stats["plans_assembled"] <= 24  # of traces: the result is larger


def test_a_concatenation_of_more_than_four_is_copies_whatever_its_parts_are(device, op_by_op):
    """Images of which each may be flipped: as one kernel a batch would have a plan of its own for each way they lie."""
    images = torch.arange(8 * 3 * 20 * 20.0).view(8, 3, 20, 20)

    def batch(where, many):
        parts = [x[:, 2:18, 3:19] for x in images.to(where)[:many]]
        joined = torch.stack([x.flip(-1) if i == 1 else x for i, x in enumerate(parts)])
        return joined.neg().abs().add(1).mul(2).sub(3).neg()

    for many, copies in ((4, 1), (5, 5), (8, 8)):
        torch.lazy.reset_stats()
        got = batch(device, many).cpu()
        stats = torch.lazy.stats()
        assert (stats["windows_op_by_op"], stats["kernels_launched"]) == (1, 7 + copies), many
        assert torch.equal(got, batch("cpu", many))


def test_lists_of_several_lengths_in_one_window_grow_not(device):
    """As a dense block's, each of whose layers concatenates what all before it gave, at one line."""

    def block(x):
        found = [x]
        for _ in range(12):
            found.append(torch.cat(found, 1).erf().mean(1, keepdim=True))
        return torch.cat(found, 1)

    x = torch.linspace(-1, 1, 40).view(4, 10)
    torch.lazy.reset_stats()
    for _ in range(2):
        torch.testing.assert_close(block(x.to(device)).cpu(), block(x))
    stats = torch.lazy.stats()
    assert (stats["windows"], stats["windows_op_by_op"]) == (2, 0)
