"""One window with a model's calls for several lengths: one kernel for all of them, from the first window on."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lazy_backend import repeats
from lazy_backend.numbering import numbers, renumbered
from tests.archive.test_archive import ROOT

WIDTH, FLOAT = 16, 6
LENGTHS = (40, 72, 24, 96, 56, 120)


@pytest.fixture
def nothing_learned():
    learned = dict(repeats._met)
    repeats.forget()
    yield
    repeats.forget()
    repeats._met.update(learned)


# --- what a window tells ------------------------------------------------------------------------------------------


def tensor(slot, *sizes):
    return "tensor", slot, FLOAT, sizes, (sizes[1], 1), 0


def window(lengths, weights=2, op="aten.mm.default"):
    """A chain of products with each weight, once for each length; weights are slots that had data."""
    slots = [(WIDTH * WIDTH * 4, True, True)] * weights
    nodes = []
    for n in lengths:
        slots.append((n * WIDTH * 4, True, True))
        for weight in range(weights):
            x = len(slots) - 1
            slots.append((n * WIDTH * 4, False, False))
            args = [tensor(x, n, WIDTH), tensor(weight, WIDTH, WIDTH)]
            nodes.append((op, args, [tensor(x + 1, n, WIDTH)], None, "line"))
            nodes.append(("aten.relu.default", [tensor(x + 1, n, WIDTH)], [tensor(x + 2, n, WIDTH)], None, "line"))
            slots.append((n * WIDTH * 4, False, False))
    return {"nodes": nodes, "slots": slots}


def lengths_of(source, other):
    """The lengths of the window's nodes if its numbers were these."""
    values = iter(other)
    changed = renumbered(source, lambda _: next(values))
    for _, args, outs, *_ in changed["nodes"]:  # all of a node's numbers are of one length
        assert {t[3][0] for t in [*args, *outs] if t[1] > 1} == {args[0][3][0]}
        assert all(changed["slots"][t[1]][0] == t[3][0] * WIDTH * 4 for t in [*args, *outs])
    return [args[0][3][0] for _, args, *_ in changed["nodes"]]


@pytest.mark.usefixtures("nothing_learned")
def test_each_length_is_told_of_another_the_same_for_all_its_nodes():
    source = window(LENGTHS)
    assert lengths_of(source, numbers(source)) == [n for n in LENGTHS for _ in range(4)]
    other = lengths_of(source, repeats.other_sizes(source))
    first, second = LENGTHS[:2]
    assert other == [second] * 4 + [first] * 4 * (len(LENGTHS) - 1)


@pytest.mark.usefixtures("nothing_learned")
def test_few_lengths_say_nothing():
    assert repeats.other_sizes(window(LENGTHS[: repeats.FEWEST - 1])) is None


@pytest.mark.usefixtures("nothing_learned")
def test_a_length_that_comes_again_is_one():
    assert repeats.other_sizes(window(LENGTHS[: repeats.FEWEST - 1] * 2)) is None


@pytest.mark.usefixtures("nothing_learned")
def test_later_windows_begin_elsewhere_and_know():
    assert repeats.other_sizes(window(LENGTHS[:1])) is None
    assert repeats.other_sizes(window(LENGTHS))
    later = window((88,))
    assert lengths_of(later, repeats.other_sizes(later)) == [LENGTHS[0]] * 4


@pytest.mark.usefixtures("nothing_learned")
def test_other_weights_are_another_matter():
    assert repeats.other_sizes(window(LENGTHS))
    wider = renumbered(window((88,)), lambda n: n * 2)
    assert repeats.other_sizes(wider) is None


@pytest.mark.usefixtures("nothing_learned")
def test_convolutions_keep_their_sizes():
    assert repeats.other_sizes(window(LENGTHS, op="aten.convolution.default")) is None


# --- what is built ------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, -1).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.down(F.gelu(self.up(x)))


def run(device, lengths, built=None):
    torch.manual_seed(0)
    layer = Layer().to(device).eval()
    batches = [torch.randn(2, n, WIDTH).to(device) for n in lengths]
    if built is not None:
        torch.lazy.synchronize()
        torch.lazy.reset_stats()
    with torch.no_grad():
        result = torch.stack([layer(x).square().mean() for x in batches]).cpu()
    if built is not None:
        built.append(torch.lazy.stats()["kernels_built"])
    return result


@pytest.fixture
def one_window(device):
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    with torch.lazy.window(512):
        yield device


def test_a_window_of_six_lengths_has_the_kernels_of_one(one_window):
    built = []
    found = run(one_window, LENGTHS, built)
    torch.testing.assert_close(found, run("cpu", LENGTHS), rtol=1e-5, atol=1e-5)
    # layer norm, q k v, attention, its projection's sum, two products, the mean; and the stack of six
    assert built[0] <= 8, "fewer where another test had one of them"


def test_later_windows_of_other_lengths_build_nothing(one_window):
    run(one_window, LENGTHS)
    built = []
    for lengths in ((64, 32), (48,), (104, 80, 112)):
        torch.testing.assert_close(run(one_window, lengths, built), run("cpu", lengths), rtol=1e-5, atol=1e-5)
    assert built == [1, 1, 1]  # the stack


PROCESS = """
import sys, torch
from tests.cache.test_repeats import run
built = []
with torch.lazy.window(512):
    for lengths in sys.argv[1:]:
        run("lazy", tuple(map(int, lengths.split(","))), built)
print(*built)
"""


def test_a_process_that_finds_the_window_s_plan_learns_from_it(one_window, tmp_path):
    def process(*windows):
        command = [sys.executable, "-c", PROCESS, *(",".join(map(str, lengths)) for lengths in windows)]
        environment = os.environ | {"LAZY_CACHE_DIR": str(tmp_path)}
        return subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=True).stdout

    assert process(LENGTHS).split() == ["8"], "exactly: no other test is in this process"
    assert process(LENGTHS, (64, 32)).split() == ["0", "1"]
