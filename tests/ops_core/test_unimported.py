"""Dynamo and sympy are imported by those who use them."""

import subprocess
import sys

import pytest
import torch
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ops_core import plain_symbols

SCRIPT = """
import sys, torch
x = torch.arange(16.0).to("lazy").reshape(4, 4)
y = torch.roll((x + x).float(), 1).softmax(1).std() + torch.nn.functional.layer_norm(x, (4,)).sum()
y = y + torch.nn.functional.conv2d(torch.arange(16.0, device="lazy").view(1, 1, 4, 4), x.view(4, 1, 2, 2)).var()
w = torch.ones(3, 2, device="lazy", requires_grad=True)
y = y + torch.stack([w[0], w[2]]).sum()
y.backward()
print(w.grad.tolist() == [[1, 1], [0, 0], [1, 1]])
print(y.isfinite().item(), *(name in sys.modules for name in ("torch._dynamo", "sympy")))
own = torch._prims_common.same_shape
print("torch.fx.experimental.symbolic_shapes" in own.__code__.co_names)
try:
    torch.arange(3, 1, device="lazy")
except RuntimeError as error:
    print("inconsistent" in str(error), "sympy" in sys.modules)
compiled = torch.compile(lambda x: torch.roll(x * 2, 1).fmod(3), backend="eager", fullgraph=True)
print(torch.equal(compiled(x), torch.roll(x * 2, 1).fmod(3)))
print("torch.fx.experimental.symbolic_shapes" in own.__code__.co_names)
from torch._compile import _disable_dynamo
hidden = torch._refs.add.__wrapped__.__wrapped__
torch._refs.add(torch.ones(2), 1)
print(hidden.__dict__["__dynamo_disable"]._torchdynamo_disable)
"""


TRAINING = """
import sys, torch
torch.manual_seed(3)
model = torch.nn.Linear(4, 4).to("lazy")
optimizers = [kind(model.parameters(), lr=0.1) for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop)]
own = torch.optim.SGD.step.__wrapped__
def step():
    for optimizer in optimizers:
        optimizer.zero_grad()
        model(torch.ones(2, 4, device="lazy")).square().sum().backward()
        with torch.enable_grad():
            optimizer.step()
            assert torch.is_grad_enabled()
        optimizer.load_state_dict(optimizer.state_dict())
step()
print("torch._dynamo" in sys.modules, "_dynamo" in own.__code__.co_names)
import torch._dynamo
print("_dynamo" in own.__code__.co_names, len([f for f in sys.meta_path if "ops_core" in type(f).__module__]))
step()
compiled = torch.compile(lambda: optimizers[1].step(), backend="eager")
model(torch.ones(2, 4, device="lazy")).sum().backward()
before = model.weight.detach().clone()
compiled()
print(torch.equal(model.weight, before))
"""


def test_optimizers_do_not_import_it_and_their_steps_are_torchs_own_when_it_comes(device):
    if device == "cpu":
        pytest.skip("torch's own")
    run = subprocess.run([sys.executable, "-c", TRAINING], capture_output=True, text=True, timeout=300)
    assert run.stdout.split() == ["False", "False", "True", "0", "False"], run.stderr


def test_eager_ops_do_not_import_it_and_it_works_when_it_comes(device):
    if device == "cpu":
        pytest.skip("torch's own")
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    printed = ["True", "True False False", "False", "True False", "True", "True", "True"]
    assert run.stdout.splitlines() == printed, run.stderr


BOOLS = [(True,), (False,)]
CALLS = {
    "expect_true": BOOLS,
    "guard_size_oblivious": BOOLS,
    "guard_or_false": BOOLS,
    "guard_or_true": BOOLS,
    "statically_known_true": BOOLS,
    "guard_int": [(0,), (3,)],
    "guarding_hint_or_throw": [(0,), (3,), (True,)],
    "has_guarding_hint": [(3,), (True,)],
    "is_nested_int": [(3,)],
    "sym_and": [(True,), (True, False), (True, True, True)],
    "sym_or": [(False,), (True, False), (False, False, False)],
    "sym_eq": [(3, 3), (3, 4), ([1, (2, 3)], (1, [2, 3])), ([1], [1, 2]), ([], [])],
}


def sizes():
    """Two symbols of a trace, and a condition on them."""
    from torch._dynamo.source import ConstantSource

    env = ShapeEnv()
    a, b = (
        env.create_symintnode(env.create_symbol(n, source=ConstantSource(name)), hint=n, source=ConstantSource(name))
        for n, name in ((5, "a"), (7, "b"))
    )
    return a, b, a < b


@pytest.mark.parametrize("name", CALLS)
def test_what_stands_in_for_torchs_symbols_gives_what_they_give(name):
    ours, own = getattr(plain_symbols, name), getattr(symbolic_shapes, name)
    for values in CALLS[name]:
        assert ours(*values) is own(*values)


@pytest.mark.parametrize("name", CALLS)
def test_what_stands_in_for_torchs_symbols_asks_them_about_symbols(name):
    a, b, less = sizes()
    values = {"sym_and": (less, True), "sym_or": (less, False), "sym_eq": ([a, 7], [5, b])}.get(name)
    if values is None:
        values = (
            (a,) if name in ("guard_int", "guarding_hint_or_throw", "has_guarding_hint", "is_nested_int") else (less,)
        )
    expected = getattr(symbolic_shapes, name)(*values)
    given = getattr(plain_symbols, name)(*values)
    assert type(given) is type(expected) and bool(given) == bool(expected)


def test_tensors_of_plain_sizes_have_no_symbols():
    x = torch.ones(3, 4).T
    assert not plain_symbols.free_unbacked_symbols(x) and not symbolic_shapes.free_unbacked_symbols(x)
    a, *_ = sizes()
    assert type(plain_symbols.free_unbacked_symbols(a)) is type(symbolic_shapes.free_unbacked_symbols(a))


def test_what_does_not_stand_in_is_torchs_own():
    assert plain_symbols.ShapeEnv is ShapeEnv
