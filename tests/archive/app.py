"""What the archive's tests record and run: `python -m tests.archive.app CASE`. Prints results and counters as JSON.

With ARCHIVE_NO_COMPILER=1 the compilers cannot be imported, and a program cannot be built from source.
"""

import json
import os
import sys


class Refuse:
    """An import hook under which there is no compiler."""

    NAMES = frozenset({"mlir", "torch_mlir", "codegen", "lazy_backend.compiler"})

    def find_spec(self, name, path=None, target=None):
        if name in self.NAMES:
            raise ImportError(f"{name} must not be needed here")


def training(steps=3, width=8):
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, 16), torch.nn.Dropout(0.2), torch.nn.GELU(), torch.nn.Linear(16, 3)
    )
    model.to("lazy")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.linspace(-1, 1, 6 * width).reshape(6, width).lazy(), torch.tensor([0, 1, 2, 0, 1, 2]).lazy()
    losses = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return [
        *losses,
        model(x).sum().item(),
        model(x[:4]).abs().pow(2.5).sum().item(),
        model(x[:2]).cumsum(0).sum().item(),
    ]


def small():
    import torch

    x = torch.arange(6.0, device="lazy")
    return [x.sin().sum().item(), (x * 2).cos().max().item(), x.cumsum(0).tolist()[-1]]


def refuse() -> None:
    """From here on no compiler can be imported or started, and the driver builds nothing from source."""
    sys.meta_path.insert(0, Refuse())
    import torch  # noqa: F401  (its autoload is what makes the modules below importable)

    from lazy_backend import _C, builders

    build = _C.build_program

    def from_binaries(device, text, is_binary, options):
        if not is_binary:
            raise AssertionError("a program is built from source")
        return build(device, text, is_binary, options)

    def start(self, origin=None):
        raise AssertionError("a process is started to build programs")

    _C.build_program, builders.Builder.start = from_binaries, start


CASES = {
    "small": small,
    "training": training,
    "other size": lambda: training(width=10),
    "other op": lambda: [__import__("torch").ones(7, device="lazy").sin().sum().item()],
    "host op": lambda: [__import__("torch").tensor([4.0, 9.0, 1.0], device="lazy").kthvalue(2).values.item()],
}


def main() -> None:
    if os.environ.get("ARCHIVE_NO_COMPILER"):
        refuse()
    import torch

    result = CASES[sys.argv[1]]()
    torch.lazy.synchronize()
    compilers = sorted(Refuse.NAMES & set(sys.modules))
    print(json.dumps({"result": result, "stats": torch.lazy.stats(), "compilers": compilers}))


if __name__ == "__main__":
    main()
