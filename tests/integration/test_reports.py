"""Reports: what the device did and why, by Python line."""

import torch

import lazy_backend


def test_report_names_the_reasons_and_their_lines():
    """lazy_backend.report() says why windows ended, why the host waited and what fell back, with the Python line."""
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    x = torch.ones(3, 3, device="lazy") * 2
    values = torch.linalg.eigvals(x).abs().amax().item()  # complex eigenvalues: the host's
    assert abs(values - 6) < 1e-5
    here = f"{__file__}:"
    found = {(cause.event, cause.reason): cause for cause in lazy_backend.causes()}
    assert all(cause.line.startswith(here) for cause in found.values()), found
    assert found["read", "item"].count == 1
    fallbacks = {reason: cause.count for (event, reason), cause in found.items() if event == "fallback"}
    assert fallbacks == torch.lazy.stats()["host_ops_by_name"] and any("eig" in name for name in fallbacks)
    cuts = {reason: cause.count for (event, reason), cause in found.items() if event == "cut"}
    assert cuts == torch.lazy.stats()["cuts_by_cause"] and sum(cuts.values()) == torch.lazy.stats()["windows"]
    text = lazy_backend.report()
    assert "item(), bool(), a branch on a value" in text and str(found["read", "item"]) in text
    torch.lazy.reset_stats()
    assert lazy_backend.causes() == []


def test_every_reason_has_words():
    """Every reason that the core gives for a cut is explained in the report."""
    from lazy_backend.reports.explain import _REASONS

    torch.lazy.reset_stats()
    x = torch.ones(4, device="lazy")
    x.add_(1).copy_(torch.zeros(4))  # a copy into a tensor in use
    event = torch.lazy.Event()
    x.add_(1)
    event.record()
    x.add_(1)
    torch.lazy.synchronize()
    with torch.lazy.window(4):
        for _ in range(5):
            x.add_(1)
    assert x[0].item() == 7
    reasons = {(cause.event, cause.reason) for cause in lazy_backend.causes()}
    assert len(reasons) >= 3 and reasons <= _REASONS.keys()


def test_a_user_may_keep_scripts_in_a_folder_called_torch(tmp_path):
    """Lines of the user's own files are named whatever their folders are called."""
    path = tmp_path / "torch" / "codegen" / "script.py"
    path.parent.mkdir(parents=True)
    path.write_text("def double(x):\n    return (x * 2).sum().item()\n")
    scope: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    assert scope["double"](torch.ones(3, device="lazy")) == 6
    assert f"{path}:2 in double" in {cause.line for cause in lazy_backend.causes()}


def test_explain_shows_kernels_and_lines():
    """lazy_backend.explain(f, ...) gives each window's ops, kernels, MLIR and source with their Python lines."""
    x = torch.ones(4, device="lazy")
    explained = lazy_backend.explain(lambda t: (t * 3 + 1).sum(), x)
    assert explained.result.item() == 16
    ops = [op for window in explained.windows for op in window.ops]
    assert any("mul" in op for op in ops) and any("sum" in op for op in ops)
    kernels = [kernel for window in explained.windows for kernel in window.kernels]
    assert kernels and all("gpu.func" in kernel.mlir and "void" in kernel.source for kernel in kernels)
    assert all(__file__ in line for kernel in kernels for line in kernel.lines)
