"""Where in a storage a window reads and writes is no part of its plan: `x[i : i + 32]` has one for every i."""

import random

import pytest
import torch

ROWS, BATCH, WIDTH = 640, 32, 16


@pytest.fixture(autouse=True)
def windowed(device):
    if device == "cpu":
        pytest.skip("the cpu has no windows")


def rows(device, count=ROWS, dtype=torch.float32):
    return torch.arange(count * WIDTH, dtype=dtype).view(count, WIDTH).div(7).sin().to(dtype).to(device)


def in_turns(turn, turns=range(2, ROWS // BATCH)):
    """What each turn gives; after two turns nothing is compiled, put together, or looked up anew."""
    found = []
    for i in turns:
        if i == turns.start + 2:
            torch.lazy.reset_stats()
        found.append(turn(i))
        torch.lazy.synchronize()
    stats = torch.lazy.stats()
    assert {k: stats[k] for k in ("plans_compiled", "plans_assembled", "meta_misses")} == {
        "plans_compiled": 0, "plans_assembled": 0, "meta_misses": 0,
    }  # fmt: skip
    return found


@pytest.mark.parametrize("window", [1, 8, 512])
def test_a_loop_over_batches_has_one_plan(device, window):
    data, labels, weight = rows("cpu"), torch.arange(ROWS) % WIDTH, rows("cpu", WIDTH)

    def turn(i, place):
        at = slice(i * BATCH, (i + 1) * BATCH)
        w = weight.to(place, copy=True).requires_grad_()
        loss = torch.nn.functional.cross_entropy(on[place][0][at] @ w, on[place][1][at])
        loss.backward()
        return w.grad

    on = {place: (data.to(place), labels.to(place)) for place in ("cpu", device)}
    with torch.lazy.window(window):
        for i, got in enumerate(in_turns(lambda i: turn(i, device)), 2):
            torch.testing.assert_close(got.cpu(), turn(i, "cpu"))


@pytest.mark.parametrize("window", [1, 8, 512])
def test_a_loop_that_writes_each_batch_has_one_plan_and_leaves_the_rest_alone(device, window):
    data, out = rows(device), torch.full((ROWS, WIDTH), -1.0, device=device)

    def turn(i):
        out[i * BATCH : (i + 1) * BATCH] = data[(i - 1) * BATCH : i * BATCH] * 2
        out[i * BATCH : (i + 1) * BATCH].add_(1)

    with torch.lazy.window(window):
        in_turns(turn)
    want = torch.full((ROWS, WIDTH), -1.0)
    want[2 * BATCH :] = rows("cpu")[BATCH:-BATCH] * 2 + 1
    torch.testing.assert_close(out.cpu(), want, rtol=0, atol=0)


def test_a_window_that_also_reads_from_the_start_reads_there(device):
    data = rows(device)
    for i in (3, 9, 14):
        got = data[i * BATCH : (i + 1) * BATCH] - data[:BATCH]
        want = rows("cpu")[i * BATCH : (i + 1) * BATCH] - rows("cpu")[:BATCH]
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0)


def test_an_op_of_the_host_reads_in_the_same_place(device):
    def greatest(place):
        data = rows(place)
        blocks = [data[i * WIDTH : (i + 1) * WIDTH] for i in (3, 9, 14)]
        return torch.stack([torch.linalg.eigvals(block).abs().amax() * block[0, 0] for block in blocks])

    torch.testing.assert_close(greatest(device).cpu(), greatest("cpu"))


DTYPES = [torch.float32, torch.uint8, torch.int64, torch.bfloat16, torch.float64, torch.complex64]


def program(choose, device, dtype):
    """Reads and writes of any places of two storages, in any order."""
    a, b = (rows(device, 24, torch.float32).mul(9).to(dtype).flatten() for _ in range(2))
    reads = []
    for _ in range(choose.randrange(2, 14)):
        x, y = choose.choice([(a, b), (b, a), (a, a)])
        first, second, size = choose.randrange(300), choose.randrange(300), choose.choice([0, 1, 3, 16, 40, 64])
        stride = choose.choice([1, 1, 1, 0, 2, -1])
        read = y[second : second + size]
        if stride == 0:
            read = y[second : second + 1].expand(size)
        elif stride == 2:
            read = torch.as_strided(y, (size // 8, 8), (1, size // 8), second).reshape(-1)[:size]
        elif stride == -1:
            read = read.flip(0)
        match choose.randrange(4):
            case 0:
                x[first : first + read.numel()] = read + 1
            case 1:
                x[first : first + read.numel()] += read * 2
            case 2:
                reads.append(read.sum() if read.numel() else read.clone())
            case 3:
                x[first : first + size].zero_()
    return [t.cpu() for t in (*reads, a, b)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [1, 8, 512])
def test_programs_over_any_places_give_what_eager_gives(device, window, dtype):
    for seed in range(12):
        want = program(random.Random(seed), "cpu", dtype)
        with torch.lazy.window(window):
            got = program(random.Random(seed), device, dtype)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, **({"rtol": 0.02, "atol": 0.1} if dtype == torch.bfloat16 else {}))
