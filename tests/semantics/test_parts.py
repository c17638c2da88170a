"""Writes of parts of a tensor: chains of them are values, with eager's numbers to the bit and one kernel a turn."""

import random

import pytest
import torch
import torch.nn.functional as F

WINDOWS = (1, 8, 512)


def wave(u, v, turns=4):
    for _ in range(turns):
        laplacian = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]
        v[1:-1, 1:-1] += 0.2 * laplacian
        v *= 0.999
        u[1:-1, 1:-1] += 0.2 * v[1:-1, 1:-1]


def heat(u, v):
    """One dimension, an edge that is held, and a value that is taken from the chain's middle."""
    for turn in range(5):
        u[1:-1] = u[1:-1] + 0.25 * (u[2:] - 2 * u[1:-1] + u[:-2])
        u[0] = 1.0
        if turn == 2:
            v[:] = u.flip(0)


def upwind(u, v):
    for _ in range(3):
        u[1:] -= 0.3 * (u[1:] - u[:-1])
        v[:, 2:] += u[:, :-2]
        u[:, 1:] *= v[:, :-1]


def mirrored(u, v):
    u[:, :-1] = u[:, 1:].flip(1)
    v[1:] = u[:-1] / (v[1:] + 3)
    v[:-1] = u[1:]


def halves(u, v):
    n = u.shape[1] // 2 + 1
    u[:, :n] = v[:, -n:] * 2
    u[:, n:] = v[:, : u.shape[1] - n] - 1
    v.copy_(u.roll(1, 1))


def counted(u, v):
    """Integers that are divided where the part's edge gives none."""
    n = (v.abs() * 10).int() + 1
    m = (u * 10).int()
    m[1:, 1:] //= n[:-1, :-1]
    m[1:, 1:] %= n[1:, 1:] + 1
    u += m


PROGRAMS = {p.__name__: p for p in (wave, heat, upwind, mirrored, halves, counted)}


def run(program, where, shape, dtype=torch.float32):
    torch.manual_seed(0)
    u, v = torch.randn(shape).to(dtype).to(where), torch.randn(shape).to(dtype).to(where)
    program(u, v)
    return u.cpu(), v.cpu()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shape", [(9, 12), (34, 70), (5, 130)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_eager_s_numbers(device, name, shape, window):
    with torch.lazy.window(window):
        for mine, eager in zip(run(PROGRAMS[name], device, shape), run(PROGRAMS[name], "cpu", shape), strict=True):
            torch.testing.assert_close(mine, eager, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_other_dtypes(device, dtype):
    def program(u, v):
        u[1:, :-1] += v[:-1, 1:]
        v[:-1] = u[1:] * 2
        u[:, 1:] -= v[:, :-1]

    for mine, eager in zip(run(program, device, (20, 40), dtype), run(program, "cpu", (20, 40), dtype), strict=True):
        torch.testing.assert_close(mine, eager, rtol=0, atol=0)


def one_of_many(seed):
    """A random program of writes to parts of three tensors, of whole tensors, and of reads that are kept."""

    def program(where):
        draw = random.Random(seed)
        shape = draw.choice([(18, 33), (40, 16), (7, 5, 24), (300,)])
        torch.manual_seed(seed)
        tensors = [torch.randn(shape).to(where) for _ in range(3)]
        kept = []

        def part(x, sizes=None):
            """A box of x, of these sizes or larger than half."""
            at = []
            for d, n in enumerate(x.shape):
                size = sizes[d] if sizes else draw.choice([n, n - 1, n - 2, n - 3])
                start = draw.randint(0, n - size)
                at.append(slice(start, start + size))
            return x[tuple(at)]

        for _ in range(draw.randint(4, 14)):
            x, y, z = (draw.choice(tensors) for _ in range(3))
            match draw.randint(0, 7):
                case 0:
                    x.mul_(0.75)
                case 1:
                    x.copy_(y * 0.5 + z)
                case 2:
                    kept.append((part(y) * 2).sum(-1) if draw.random() < 0.5 else part(y).clone())
                case 3:
                    x[0] = draw.choice([1.0, y[-1]])
                case 4:
                    tensors[draw.randrange(3)] = x.clone()
                case _:
                    target = part(x)
                    a, b = part(y, target.shape), part(z, target.shape)
                    alone = a.clone() if y is x else a  # where memory overlaps, eager's order decides
                    value = draw.choice(
                        [alone, a + b, a * 0.5 - b, torch.maximum(a, b) * target, a.abs().sqrt() + target]
                    )
                    draw.choice([target.copy_, target.add_, target.mul_])(value)
        return [t.cpu() for t in (*tensors, *kept)]

    return program


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled
def test_random_programs(device, seed, window):
    with torch.lazy.window(window):
        mine = one_of_many(seed)(device)
    for a, b in zip(mine, one_of_many(seed)("cpu"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", WINDOWS)
def test_what_an_op_without_a_kernel_reads_a_part_of_stays_written(device, window):
    def program(where):
        torch.manual_seed(0)
        u, v = torch.rand(20, 24).to(where), torch.rand(20, 24).to(where)
        u[1:] *= 2
        v[:, 1:] += u[:, :-1]
        u[1:] *= 2
        found = torch.igamma(u[2:6, 3:7], v[2:6, 3:7])
        u[:-1] += v[1:]
        return [t.cpu() for t in (u, v, found)]

    with torch.lazy.window(window):
        torch.testing.assert_close(program(device), program("cpu"), rtol=1e-5, atol=1e-5)


# --- kernels ------------------------------------------------------------------------------------------------------


def launches(program, *tensors):
    with torch.lazy.window(512):
        program(*tensors)
        torch.lazy.synchronize()
        torch.lazy.reset_stats()
        kept = program(*tensors)
        torch.lazy.synchronize()
        del kept
        return torch.lazy.stats()["kernels_launched"]


def tensors(device, *shape):
    if device == "cpu":
        pytest.skip("the CPU launches no kernels")
    found = [torch.randn(shape).to(device) for _ in range(2)]
    torch.lazy.synchronize()
    return found


def test_a_stencil_s_turn_is_one_kernel(device):
    u, v = tensors(device, 64, 96)
    assert [launches(lambda u, v, n=n: wave(u, v, n), u, v) for n in (4, 6)] == [4, 6]


def test_one_write_of_a_part_touches_that_part_only(device):
    def program(u, v):
        u[1:-1] += v[1:-1].tanh() * v[:-2].sin()

    u, v = tensors(device, 64, 96)
    assert launches(program, u, v) == 1


def test_padding_is_no_kernel(device):
    u, v = tensors(device, 64, 96)
    assert launches(lambda u, v: F.pad(u, (1, 2, 3, 4)).softmax(-1), u, v) == 1
    assert launches(lambda u, v: (F.pad(u[:, 1:], (0, 1)) + F.pad(v[1:], (0, 0, 1, 0))).relu(), u, v) == 1


def test_a_small_part_is_written_where_it_lies(device):
    """a cache that takes a token's keys: one kernel, whatever the cache's size"""

    def program(u, v):
        u[3:5] = v[3:5] * 2
        return u.sum()

    u, v = tensors(device, 64, 96)
    assert launches(program, u, v) == 2


def test_memory_that_nobody_wrote_is_not_read(device):
    u, v = tensors(device, 64, 96)

    def program(u, v):
        out = torch.empty_like(u)
        out[:40] = v[:40]
        out[40:] = u[40:]
        return out

    torch.testing.assert_close(program(u, v).cpu(), torch.cat([v[:40].cpu(), u[40:].cpu()]))
    assert launches(program, u, v) <= 2
