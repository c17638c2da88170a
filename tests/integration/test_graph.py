"""Graphs: torch.accelerator.Graph captures what is recorded and replays it"""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F


def test_a_training_step_is_replayed(device):
    """A captured training step, its batch copied into place before each replay, trains as eager does"""
    batches = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(4)]

    def parts(where):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)).to(where)
        return model, torch.optim.AdamW(model.parameters(), lr=0.01, capturable=where != "cpu")

    def step(model, optimizer, x, y):
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    model, optimizer = parts("cpu")
    want = [step(model, optimizer, *batches[0]), *(step(model, optimizer, *batch) for batch in batches)]
    weights = [p.detach() for p in model.parameters()]

    model, optimizer = parts(device)
    x, y = (t.to(device) for t in batches[0])
    got = [step(model, optimizer, x, y).cpu()]  # makes gradients and the optimizer's state, as a warm-up does
    graph = torch.accelerator.Graph()
    with graph:
        loss = step(model, optimizer, x, y)
    torch.lazy.reset_stats()
    for batch in batches:
        x.copy_(batch[0])
        y.copy_(batch[1])
        graph.replay()
        got.append(loss.cpu())
    assert torch.lazy.stats()["ops"] == 0  # recorded
    torch.testing.assert_close(torch.stack(got), torch.stack(want), rtol=1e-5, atol=1e-6)
    for p, q in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(p.detach().cpu(), q, rtol=1e-4, atol=1e-6)


def test_nothing_runs_while_a_graph_is_captured(device):
    """Capturing computes nothing; each replay does, also upon what the graph alone still holds"""
    x, out = torch.zeros(5, device=device), torch.zeros(5, device=device)
    total = torch.ones(5, device=device)
    graph = torch.accelerator.Graph()
    with graph:
        x += 1
        total.mul_(2)
        out.copy_(total + x)
    del total
    assert x.tolist() == [0.0] * 5
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(out[0].item())
    assert x.tolist() == [3.0] * 5
    assert seen == [2 + 1, 4 + 2, 8 + 3]


def test_each_replay_draws_anew(device):
    """Random ops of a graph draw what they would have drawn eagerly, further numbers with each replay"""
    torch.lazy.manual_seed(7)
    want = [F.dropout(torch.ones(64, device=device)).cpu() for _ in range(3)]
    torch.lazy.manual_seed(7)
    graph = torch.accelerator.Graph()
    with graph:
        drawn = F.dropout(torch.ones(64, device=device))
    got = []
    for _ in range(3):
        graph.replay()
        got.append(drawn.cpu())
    assert torch.equal(torch.stack(got), torch.stack(want))
    assert not torch.equal(got[0], got[1])


def test_what_needs_a_value_is_refused(device):
    """Reads, synchronization and other generators raise while a graph is captured; the device stays usable"""
    x = torch.ones(3, device=device)
    other = torch.Generator(device).manual_seed(1)
    graph = torch.accelerator.Graph()
    for act in (x.sum().item, torch.lazy.synchronize, lambda: torch.rand(3, generator=other, device=device)):
        with pytest.raises(RuntimeError, match="while a graph is"), graph:
            act()
        graph.reset()
        assert (x + 1).tolist() == [2.0] * 3


def test_the_life_of_a_graph(device, tmp_path):
    """keep_graph, instantiate, reset, a shared pool, debug_dump, and errors for calls out of turn"""
    x = torch.zeros(2, device=device)
    graph = torch.accelerator.Graph(keep_graph=True)
    for call in (graph.replay, graph.capture_end, graph.instantiate, graph.pool):
        with pytest.raises(RuntimeError, match="without"):
            call()
    graph.enable_debug_mode()
    with torch.Stream(device), graph:
        x += 1
        with pytest.raises(RuntimeError, match="being captured"):
            torch.accelerator.Graph().capture_begin()
    with pytest.raises(RuntimeError, match="reset"):
        graph.capture_begin()
    graph.instantiate()
    graph.replay()
    second = torch.accelerator.Graph(pool=graph.pool())
    with second:
        x *= 10
    assert second.pool() == graph.pool()
    second.replay()
    graph.debug_dump(str(tmp_path / "graph.txt"))
    assert (
        "aten.add_" in (tmp_path / "graph.txt").read_text() and "test_graph.py" in (tmp_path / "graph.txt").read_text()
    )
    graph.reset()
    with graph:
        x -= 4
    graph.replay()
    assert x.tolist() == [6.0, 6.0]
