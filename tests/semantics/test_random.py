"""Random numbers: a function of the seed and the order of calls only, with the right distributions."""

import math

import pytest
import torch

N = 20_000
# distribution: (draw, mean, standard deviation)
DISTRIBUTIONS = {
    "rand": (lambda d: torch.rand(N, device=d), 0.5, 1 / math.sqrt(12)),
    "randn": (lambda d: torch.randn(N, device=d), 0.0, 1.0),
    "normal": (lambda d: torch.empty(N, device=d).normal_(3, 2), 3.0, 2.0),
    "uniform": (lambda d: torch.empty(N, device=d).uniform_(-1, 3), 1.0, 4 / math.sqrt(12)),
    "bernoulli": (lambda d: torch.empty(N, device=d).bernoulli_(0.3), 0.3, math.sqrt(0.21)),
    "bernoulli of a tensor": (lambda d: torch.full((N,), 0.3, device=d).bernoulli(), 0.3, math.sqrt(0.21)),
    "exponential": (lambda d: torch.empty(N, device=d).exponential_(2.0), 0.5, 0.5),
    "geometric": (lambda d: torch.empty(N, device=d).geometric_(0.4), 2.5, math.sqrt(0.6) / 0.4),
    "log_normal": (lambda d: torch.empty(N, device=d).log_normal_(0, 0.5), math.exp(0.125), 0.6039),
    "randint": (lambda d: torch.randint(0, 10, (N,), device=d).float(), 4.5, math.sqrt(8.25)),
    "random": (lambda d: torch.empty(N, dtype=torch.int64, device=d).random_(0, 100).float(), 49.5, 28.866),
    "poisson": (lambda d: torch.poisson(torch.full((N,), 4.0, device=d)), 4.0, 2.0),
    "binomial": (
        lambda d: torch.binomial(torch.full((N,), 10.0, device=d), torch.full((N,), 0.3, device=d)),
        3.0,
        math.sqrt(2.1),
    ),
    "gamma": (lambda d: torch._standard_gamma(torch.full((N,), 3.0, device=d)), 3.0, math.sqrt(3)),
    "dropout": (lambda d: torch.nn.functional.dropout(torch.ones(N, device=d), 0.25), 1.0, math.sqrt(1 / 3)),
    "multinomial": (
        lambda d: torch.multinomial(torch.tensor([0.2, 0.3, 0.5], device=d), N, replacement=True).float(),
        1.3,
        math.sqrt(0.61),
    ),
    "cauchy (its median)": (lambda d: (torch.empty(N, device=d).cauchy_(2, 1) > 2).float(), 0.5, 0.5),
}
WINDOWS = (1, 8, 512)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_mean_and_deviation(device, name):
    draw, mean, deviation = DISTRIBUTIONS[name]
    sample = draw(device).cpu().double()
    assert abs(sample.mean() - mean) < 5 * deviation / math.sqrt(N)
    assert abs(sample.std() - deviation) < 0.06 * deviation + 0.01


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_seed_decides(device, name):
    draw, *_ = DISTRIBUTIONS[name]

    def stream(seed):
        torch.manual_seed(seed)
        return draw(device).cpu(), draw(device).cpu()

    (first, second), again, other = stream(1), stream(1), stream(2)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    assert not torch.equal(first, second) and not torch.equal(first, other[0])


def test_values_stay_in_their_range(device):
    u = torch.rand(N, device=device)
    assert u.min().item() >= 0 and u.max().item() < 1
    e = torch.empty(N, device=device).exponential_()
    assert e.min().item() > 0 and math.isfinite(e.max().item())
    r = torch.randint(-3, 4, (N,), device=device)
    assert sorted(r.unique().tolist()) == [-3, -2, -1, 0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_the_end_of_a_range_is_not_in_it(device, dtype):
    """also where what is drawn is rounded: every number below it that has few bits is near it"""
    assert torch.rand(N, dtype=dtype, device=device).max().item() < 1
    assert torch.rand(N, device=device).to(dtype).float().mean().item() == pytest.approx(0.5, abs=0.01)
    x = torch.empty(N, dtype=dtype, device=device).uniform_(2, 4)
    assert x.min().item() >= 2 and x.max().item() < 4
    end = 1 + torch.finfo(dtype).eps * 4
    assert torch.empty(N, dtype=dtype, device=device).uniform_(1, end).max().item() < end
    assert torch.empty(3, dtype=dtype, device=device).uniform_(3, 3).tolist() == [3, 3, 3]


def test_integers_of_all_64_bits_have_both_signs(device):
    lowest = -(2**63)
    for x in (
        torch.randint(lowest, 2**63 - 1, (N,), device=device),
        torch.empty(N, dtype=torch.int64, device=device).random_(lowest, None),
    ):
        assert (x > 0).float().mean().item() == pytest.approx(0.5, abs=0.02)
        assert x.max().item() > 2**62 and x.min().item() < -(2**62)
    assert torch.empty(N, dtype=torch.int64, device=device).random_().min().item() >= 0


def test_randperm_is_a_permutation(device):
    p = torch.randperm(1000, device=device)
    assert torch.equal(p.sort().values.cpu(), torch.arange(1000)) and p.tolist() != list(range(1000))


def test_multinomial_without_replacement_repeats_nothing(device):
    picks = torch.multinomial(torch.ones(50, 20, device=device), 20)
    assert torch.equal(picks.sort(dim=1).values.cpu(), torch.arange(20).expand(50, 20))
    assert 0 not in torch.multinomial(torch.tensor([0.0, 1, 1], device=device), 2).tolist()


def test_the_stream_does_not_depend_on_the_window(device):
    if device == "cpu":
        pytest.skip("the cpu has no windows")

    def stream(window):
        torch.manual_seed(3)
        with torch.lazy.window(window):
            x = torch.randn(100, device=device)
            y = torch.nn.functional.dropout(x * 2, 0.5)
            return [t.cpu() for t in (x, y, torch.rand(3, device=device), torch.randperm(9, device=device))]

    streams = [stream(window) for window in WINDOWS]
    for other in streams[1:]:
        torch.testing.assert_close(other, streams[0], rtol=0, atol=0)


def test_reads_in_between_do_not_shift_the_stream(device):
    def stream(read):
        torch.manual_seed(3)
        x = torch.randn(8, device=device)
        if read:
            x.sum().item()
        return torch.randn(8, device=device).cpu()

    assert torch.equal(stream(False), stream(True))


def test_state_can_be_saved_and_restored(device):
    module = torch.get_device_module(device)
    torch.manual_seed(3)
    state = module.get_rng_state() if device != "cpu" else torch.get_rng_state()
    first = torch.randn(8, device=device).cpu()
    (module.set_rng_state if device != "cpu" else torch.set_rng_state)(state)
    assert torch.equal(torch.randn(8, device=device).cpu(), first)


def test_fork_rng_leaves_the_stream_alone(device):
    devices = [] if device == "cpu" else [0]
    torch.manual_seed(3)
    expected = torch.randn(8, device=device).cpu()
    torch.manual_seed(3)
    with torch.random.fork_rng(devices, device_type="cuda" if device == "cpu" else device):
        torch.randn(100, device=device)
    assert torch.equal(torch.randn(8, device=device).cpu(), expected)


def test_checkpointing_replays_dropout(device):
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(1000, device=device, requires_grad=True)
    seen = []

    def block(t):
        y = torch.nn.functional.dropout(t, 0.5)
        seen.append(y.detach().cpu())
        return y * y

    checkpoint(block, x, use_reentrant=False).sum().backward()
    assert torch.equal(seen[0], seen[1])


def test_random_numbers_of_no_dims_are_drawn_on_the_device(device):
    before = torch.lazy.stats()["host_ops"]
    torch.manual_seed(3)
    values = [torch.randn_like(torch.zeros((), device=device)).item() for _ in range(50)]
    assert len(set(values)) == 50
    assert torch.lazy.stats()["host_ops"] == before


# Sizes of which four divide some, the vectors of most devices few.
SHAPES = [(3, 4), (5, 8), (9, 20), (11, 36), (13, 100), (2, 6), (5, 30), (7, 9), (41, 99), (1, 1004)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_number_depends_on_the_place_of_its_element_alone(device, shape):
    """whatever is computed beside it: four elements share a counter, and so does what is computed of it"""
    if device == "cpu":
        pytest.skip("the cpu's numbers come one after another")

    def seeded(program):
        torch.manual_seed(5)
        return program().cpu()

    def drawn():
        return torch.rand(shape, device=device)

    x = torch.randn(shape)
    there = x.to(device)
    expected = seeded(lambda: torch.rand(1 << 14, device=device))[: x.numel()].reshape(shape)
    assert torch.equal(seeded(drawn), expected)
    assert torch.equal(seeded(lambda: drawn().t() + there.t()), expected.t() + x.t())
    assert torch.equal(seeded(lambda: drawn()[:, 1:] + there[:, :-1]), expected[:, 1:] + x[:, :-1])
    assert torch.equal(seeded(lambda: drawn().double() * 2), expected.double() * 2)
    for dim in (0, 1):
        torch.testing.assert_close(seeded(lambda dim=dim: (drawn() * there).sum(dim)), (expected * x).sum(dim))
        torch.testing.assert_close(seeded(lambda dim=dim: (drawn() * there).softmax(dim)), (expected * x).softmax(dim))
