"""Dynamo is imported by those who use it."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, torch
x = torch.arange(16.0).to("lazy").reshape(4, 4)
y = torch.roll((x + x).float(), 1).softmax(1).std() + torch.nn.functional.layer_norm(x, (4,)).sum()
print(y.isfinite().item(), "torch._dynamo" in sys.modules)
compiled = torch.compile(lambda x: torch.roll(x * 2, 1).fmod(3), backend="eager", fullgraph=True)
print(torch.equal(compiled(x), torch.roll(x * 2, 1).fmod(3)))
from torch._compile import _disable_dynamo
hidden = torch._refs.add.__wrapped__.__wrapped__
torch._refs.add(torch.ones(2), 1)
print(hidden.__dict__["__dynamo_disable"]._torchdynamo_disable)
"""


def test_eager_ops_do_not_import_it_and_it_works_when_it_comes(device):
    if device == "cpu":
        pytest.skip("torch's own")
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert run.stdout.split() == ["True", "False", "True", "True"], run.stderr
