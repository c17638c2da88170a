"""The sliding window's properties W1 to W6 (docs: the programming model), over random programs."""

import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from lazy_backend import config
from lazy_backend.variants import MIN_RUNS
from tests.properties.programs import programs, run

WINDOWS = (1, 8, 64, 512)
EXAMPLES = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(autouse=True)
def windowed(device):
    if device == "cpu":
        pytest.skip("the cpu has no windows")


def over_windows(program, device, dtype, loops=1):
    results = []
    for window in WINDOWS:
        with torch.lazy.window(window):
            results.append(run(program, device, dtype, loops))
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32], ids=str)
@EXAMPLES
@given(program=programs("unary", "binary", "view", "inplace", "read"))
def test_w1_elementwise_programs_give_the_bits_of_the_cpu_in_every_window(device, dtype, program):
    for result in [run(program, "cpu", dtype), *over_windows(program, device, dtype)]:
        reference = run(program, "cpu", dtype)
        torch.testing.assert_close(result, reference, rtol=0, atol=0, equal_nan=True)


@EXAMPLES
@given(program=programs("unary", "floating", "binary", "view", "inplace", "read"))
def test_w1_transcendental_programs_give_equal_bits_in_every_window(device, program):
    first, *others = over_windows(program, device, torch.float32)
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@EXAMPLES
@given(program=programs("unary", "floating", "reduction", "view", "inplace", most=12))
def test_w1_reductions_and_halves_agree_within_tolerance(device, dtype, program):
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.1}[dtype]
    reference = run(program, device, torch.float64)
    for result in over_windows(program, device, dtype):
        for got, want in zip(result, reference, strict=True):
            scale = want.abs().amax().clamp_min(1)
            if scale < 1e30:
                assert ((got.double() - want).abs().amax() / scale).item() < tolerance * len(program)


@pytest.mark.parametrize("window", WINDOWS)
@EXAMPLES
@given(program=programs("unary", "binary", "view", "inplace", most=12))
def test_w2_a_loop_compiles_nothing_after_it_has_warmed_up(device, window, program):
    with torch.lazy.window(window):
        # The second time the loop is entered after its own end, a boundary from then on; what comes once in a run of
        # the program is compiled when it has come oftener than MIN_RUNS.
        for _ in range(MIN_RUNS + 1):
            run(program, device, torch.float32, loops=24)
            torch.lazy.synchronize()
        torch.lazy.reset_stats()
        run(program, device, torch.float32, loops=24)
        torch.lazy.synchronize()
        assert torch.lazy.stats()["plans_compiled"] == 0


def test_w2_a_long_loop_settles_and_a_phase_shift_costs_nothing(device):
    def body(x):
        for _ in range(5):
            x = (x * 2 - 1).tanh() + x.mean()
        return x

    def loop(skew):
        x = torch.ones(16, device=device)
        for _ in range(skew):
            x = x + 1
        for _ in range(60):
            x = body(x)
        torch.lazy.synchronize()

    loop(0)
    loop(3)
    torch.lazy.reset_stats()
    loop(0)
    loop(3)
    assert torch.lazy.stats()["plans_compiled"] == 0


def test_w2_scalars_and_seeds_do_not_compile(device):
    def step(i):
        x = torch.ones(8, device=device) * (0.1 + i) + i
        torch.nn.functional.dropout(x, 0.5).sum().item()

    step(0), step(1)
    torch.lazy.reset_stats()
    for i in range(2, 12):
        torch.manual_seed(i)
        step(i)
    assert torch.lazy.stats()["plans_compiled"] == 0


def test_w3_pending_memory_stays_bounded(device):
    x = torch.ones(1 << 18, device=device)
    torch.lazy.synchronize()
    torch.lazy.reset_peak_memory_stats()
    base = torch.lazy.memory_allocated()
    for _ in range(400):
        x = x * 1.0001
    torch.lazy.synchronize()
    assert torch.lazy.max_memory_allocated() - base <= 4 * x.nbytes


def test_w3_a_dropped_result_frees_its_memory(device):
    torch.lazy.synchronize()
    before = torch.lazy.memory_allocated()
    for _ in range(20):
        (torch.ones(1 << 16, device=device) * 2).sum().item()
    torch.lazy.synchronize()
    assert torch.lazy.memory_allocated() <= before + 8 * (1 << 16)


def test_w4_recording_reads_nothing(device):
    x = torch.ones(64, device=device)
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    for _ in range(100):
        x = torch.relu(x) + 1
    assert torch.lazy.stats()["reads"] == 0
    x.sum().item()
    assert torch.lazy.stats()["reads"] == 1


def test_w5_a_window_of_one_runs_one_op_each(device):
    with torch.lazy.window(1):
        x = torch.ones(4, device=device)
        torch.lazy.synchronize()
        torch.lazy.reset_stats()
        y = (x + 1).relu().neg()
        torch.lazy.synchronize()
        stats = torch.lazy.stats()
    assert y.tolist() == [-2] * 4
    assert stats["windows"] == stats["ops"] == 3


def test_w6_threads_record_on_one_device(device):
    def work(seed, results):
        x = torch.full((32,), float(seed), device=device)
        for i in range(50):
            x = x * 1.5 - i if i % 2 else x.abs() / 2 + seed
            if i % 17 == seed % 17:
                x.sum().item()
        results[seed] = x.cpu()

    def expected(seed):
        x = torch.full((32,), float(seed))
        for i in range(50):
            x = x * 1.5 - i if i % 2 else x.abs() / 2 + seed
        return x

    results: dict[int, torch.Tensor] = {}
    threads = [threading.Thread(target=work, args=(seed, results)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(8):
        torch.testing.assert_close(results[seed], expected(seed))


def test_w6_a_tensor_made_by_one_thread_is_used_by_another(device):
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(torch.ones(3, device=device).add_(1)))
    thread.start()
    thread.join()
    assert (made[0] * 2).tolist() == [4, 4, 4]


def short_loop(x, turns):
    """A body of 7 ops, far shorter than a window, entered over and over."""
    for _ in range(turns):
        x = (x * 0.5 + 1.0).sin().neg().exp().tanh() - 0.25
    return x


def test_w2_a_short_loop_entered_at_another_phase_has_the_same_windows_but_for_its_ends(device):
    x = torch.randn(8, 8).to(device)
    with torch.lazy.window(128):
        first = torch.lazy.stats()
        short_loop(x, 300).cpu()
        last = torch.lazy.stats()
        # 2100 ops whose boundaries would drift through all seven phases of the loop if windows were cut by length alone
        assert sum(last[k] - first[k] for k in ("plans_compiled", "plans_assembled")) <= 4
        short_loop(x, 300).cpu()  # now entered after its own end, which is a boundary from then on
        for phase in (1, 2, 3):
            before = torch.lazy.stats()
            y = x
            for _ in range(phase):
                y = y.abs()
            short_loop(y, 300).cpu()
            after = torch.lazy.stats()
            plans = sum(after[k] - before[k] for k in ("plans_compiled", "plans_assembled"))
            assert after["windows"] - before["windows"] >= 2100 // 128
            assert plans <= 2, f"{plans} new windows at phase {phase}: the first and the last"


def test_w2_windows_of_nothing_but_a_short_loop_are_short_and_the_same(device):
    """A loop of 7 ops has windows of 70 but for the first and the last."""
    x = torch.randn(8, 8).to(device)
    with torch.lazy.window(config.WINDOW.default):
        for _ in range(3):
            short_loop(x, 100).cpu()
        before = torch.lazy.stats()
        for _ in range(4):
            short_loop(x, 100).cpu()
        after = torch.lazy.stats()
    assert after["windows"] - before["windows"] == 4 * (1 + 9 + 1)
    assert all(after[made] == before[made] for made in ("plans_compiled", "plans_assembled"))


def test_w2_a_step_that_contains_a_short_loop_stays_one_window(device):
    """Layers of a model repeat too; a step that does more than that is not cut for it."""

    def step(x):
        y = x.cumsum(0) + x.mean()  # an embedding's place
        y = short_loop(y, 15)
        x.add_(y.sum(0), alpha=0.01)
        x.clamp_(-1, 1)

    x = torch.randn(8, 8).to(device)
    with torch.lazy.window(config.WINDOW.default):
        for _ in range(3):
            step(x)
            x.cpu()
        before = torch.lazy.stats()["windows"]
        for _ in range(5):
            step(x)
            x.cpu()
        assert torch.lazy.stats()["windows"] - before == 5


def twenty_turns(turn, x, first):
    """Windows of twenty turns, and plans made for them, after one turn and `first` more in a row."""
    made = ("plans_compiled", "plans_assembled")
    with torch.lazy.window(config.WINDOW.default):
        for turns in (1, first):
            for _ in range(turns):
                x = turn(x)
            torch.lazy.synchronize()
        before = torch.lazy.stats()
        for _ in range(20):
            x = turn(x)
        torch.lazy.synchronize()
        after = torch.lazy.stats()
    return after["windows"] - before["windows"], sum(after[name] - before[name] for name in made)


def test_w2_a_loop_of_some_length_has_a_window_for_each_turn_from_the_second_on(device):
    def turn(x):
        for _ in range(6):
            x = (x * 0.5 + 1.0).sin().neg().exp().tanh() - 0.25
        return x.mean(dim=0, keepdim=True) + x.relu()

    assert twenty_turns(turn, torch.randn(8, 8).to(device), first=1) == (20, 0)


def test_w2_a_short_loop_has_a_window_for_each_turn_where_its_results_are_large(device):
    """A turn of 20 ops with 5 MB of results. Small ones share windows, of which each costs as much as some ops."""
    ops = "sin cos tanh abs neg exp sigmoid relu square floor ceil round trunc frac erf expm1 log1p rsqrt sign sqrt"

    def turn(x):
        for op in ops.split():
            x = getattr(torch, op)(x)
        return x

    assert twenty_turns(turn, torch.randn(1024, 64).to(device), first=4) == (20, 0)
    windows, _ = twenty_turns(turn, torch.randn(8, 64).to(device), first=4)
    assert windows < 10


def test_w2_the_turns_of_a_very_short_loop_are_fused_however_large_they_are(device):
    """A turn of 7 ops with 7 MB of results: memory is read and written once for ten of them."""
    x = torch.randn(1024, 256).to(device)
    with torch.lazy.window(config.WINDOW.default):
        for _ in range(3):
            short_loop(x, 100).cpu()
        before = torch.lazy.stats()
        short_loop(x, 100).cpu()
        after = torch.lazy.stats()
    assert after["windows"] - before["windows"] == 1 + 9 + 1
