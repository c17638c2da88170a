"""Data that a script makes on the device before its first step is a window of its own, so the second step has plans."""

import os
import subprocess
import sys

import pytest

# A model from the host, tokens from the device; parts of storages, so that operands lie at offsets. `between` runs when
# the data are made. Prints the losses, the plans that were made after the first step, and the windows of all.
SCRIPT = """
import sys, torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.joined, self.out = torch.nn.Embedding(50, 32), torch.nn.Linear(32, 96), torch.nn.Linear(32, 50)
    def forward(self, x):
        q, k, v = self.joined(self.table(x)).chunk(3, -1)
        return self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v))
net = Net().to("lazy")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def draw():
    tokens = torch.randint(50, (4, 17), device="lazy")
    return tokens[:, :-1], tokens[:, 1:], torch.rand(4, 16, 1, device="lazy") + 0.5
x, y, w = draw()
{between}
losses = []
def step():
    optimizer.zero_grad()
    loss = (torch.nn.functional.cross_entropy(net(x).mT, y, reduction="none") * w[..., 0]).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
step()
torch.lazy.synchronize()
stats = torch.lazy.stats()
for _ in range(2):
    step()
    torch.lazy.synchronize()
after = torch.lazy.stats()
made = sum(after[kind] - stats[kind] for kind in ("plans_compiled", "plans_assembled"))
print(made, stats["windows"], *(loss.item() for loss in losses))
"""


def run(script, tmp_path, window):
    environment = os.environ | {"LAZY_WINDOW": str(window), "LAZY_CACHE_DIR": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    made, windows, *losses = found.stdout.split()
    return int(made), int(windows), [float(loss) for loss in losses]


@pytest.fixture(autouse=True)
def only_lazy(device):
    if device == "cpu":
        pytest.skip("the cpu has no windows")


def test_the_second_step_has_the_first_one_s_plans(tmp_path):
    made, windows, losses = run(SCRIPT.format(between=""), tmp_path, 512)
    made_apart, windows_apart, losses_apart = run(SCRIPT.format(between="torch.lazy.synchronize()"), tmp_path, 512)
    assert (made, windows) == (made_apart, windows_apart) == (0, windows)
    assert losses == losses_apart
    assert losses == pytest.approx(run(SCRIPT.format(between=""), tmp_path, 1)[2], rel=1e-4)
    assert losses == pytest.approx(run(SCRIPT.format(between=""), tmp_path, 8)[2], rel=1e-4)


def test_a_step_that_draws_its_data_itself_has_the_same_windows_each_time(tmp_path):
    script = (
        SCRIPT.format(between="")
        .replace("x, y, w = draw()\n", "")
        .replace("    optimizer.z", "    x, y, w = draw()\n    optimizer.z")
    )
    made, windows, losses = run(script, tmp_path, 512)
    assert (made, windows) == (0, 2)
    assert losses == pytest.approx(run(script, tmp_path, 1)[2], rel=1e-4)


DRAWN = """
import torch
torch.manual_seed(0)
table = torch.arange(40.0).to("lazy")
{draw}
x = table[{drawn}]
for k in range(10):
    x = (x + k).sin()
torch.lazy.synchronize()
print(0, torch.lazy.stats()["windows"], x.sum().item())
"""


def test_what_is_dead_by_then_stays_where_it_is_used(tmp_path):
    kept = DRAWN.format(draw="i = torch.randint(40, (9,), device='lazy')", drawn="i")
    dead = DRAWN.format(draw="", drawn="torch.randint(40, (9,), device='lazy')")
    (_, windows, kept_sum), (_, windows_dead, dead_sum) = (run(script, tmp_path, 512) for script in (kept, dead))
    assert (windows, windows_dead) == (2, 1)
    assert kept_sum == dead_sum
