"""Many Python threads record on one device: every thread gets what it would get alone, and nobody waits for ever."""

import random
import threading

import pytest
import torch

THREADS = 8
# What a round does: elementwise ops, reductions, in-place ops, views, products, uploads; chosen by a thread's own dice.
OPS = (
    lambda x, dice: x * 1.5 - dice.randint(1, 9),
    lambda x, dice: x.abs() / 2 + 1,
    lambda x, dice: x.clamp(-50, 50) + x.mean(),
    lambda x, dice: x.add_(dice.randint(1, 9)),
    lambda x, dice: torch.cat([x[8:], x[:8]]),
    lambda x, dice: (x.clamp(-5, 5).view(4, 8) @ x.clamp(-5, 5).view(8, 4)).flatten().repeat(2),
    lambda x, dice: x + torch.arange(32.0).to(x.device),
    lambda x, dice: torch.relu_(x).neg(),
)
# How a round may read: a number, a tensor, a condition, everything of the device.
READS = (
    lambda x: x.sum().item(),
    lambda x: x[3:7].tolist(),
    lambda x: bool((x > 0).any()),
    lambda x: x.cpu().norm().item(),
    lambda x: torch.lazy.synchronize(),
)


def work(seed: int, device: str, rounds: int) -> tuple[list[object], torch.Tensor]:
    dice = random.Random(seed)
    x = torch.full((32,), float(seed), device=device)
    seen = []
    for _ in range(rounds):
        for _ in range(dice.randint(1, 4)):
            x = dice.choice(OPS)(x, dice)
        if dice.random() < 0.3:
            seen.append(dice.choice(READS)(x))
    return seen, x.cpu()


def together(device: str, rounds: int) -> list[tuple[list[object], torch.Tensor]]:
    results: dict[int, tuple[list[object], torch.Tensor]] = {}
    errors: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            results[seed] = work(seed, device, rounds)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(seed,), daemon=True) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=570)
    assert not errors, errors
    assert len(results) == THREADS, "a thread waits for ever"
    return [results[seed] for seed in range(THREADS)]


@pytest.mark.parametrize(
    ("mode", "window", "rounds"),
    [
        ("sync", 1, 100),
        ("sync", 8, 6),  # hardly a window comes twice: each is a compile
        ("sync", 512, 6),
        ("async", 8, 1000),
        ("async", 512, 1000),
        pytest.param("sync", 1, 1000, marks=pytest.mark.slow),
    ],
)
def test_threads_get_what_one_thread_gets(device, monkeypatch, mode, window, rounds):
    if device == "cpu":
        pytest.skip("the cpu has no windows")
    monkeypatch.setenv("LAZY_COMPILE", mode)
    expected = [work(seed, "cpu", rounds) for seed in range(THREADS)]
    with torch.lazy.window(window):
        for (seen, x), (want, y) in zip(together(device, rounds), expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-3)
            assert len(seen) == len(want)
            for a, b in zip(seen, want, strict=True):
                assert a == b or torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3) is None
