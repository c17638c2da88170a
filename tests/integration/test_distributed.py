"""torch.distributed, two processes on one machine."""

import os
import subprocess
import sys
import tempfile

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.integration.process import run_python

RANKS = 2


def worker(rank: int, path: str, task, results) -> None:
    """One rank: joins the group, runs `task(rank)`, gives back its value."""
    torch.set_num_threads(1)
    dist.init_process_group("lazy", init_method=f"file://{path}", rank=rank, world_size=RANKS)
    try:
        results.put((rank, task(rank)))
    finally:
        dist.destroy_process_group()


def spread(task) -> list:
    """`task(rank)` on two processes; their results by rank."""
    context = torch.multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results = context.SimpleQueue()
        args = (f"{folder}/meet", task, results)
        processes = [context.Process(target=worker, args=(rank, *args)) for rank in range(RANKS)]
        for process in processes:
            process.start()
        found = {}
        for process in processes:
            process.join(300)
            assert process.exitcode == 0
        for _ in processes:
            rank, value = results.get()
            found[rank] = value
    return [found[rank] for rank in range(RANKS)]


def collectives(rank: int) -> dict[str, list]:
    """What each collective gives this rank."""
    mine = torch.arange(4.0, device="lazy") + 10 * rank
    found = {}

    def keep(name: str, *tensors: torch.Tensor) -> None:
        assert all(t.is_lazy for t in tensors)
        found[name] = [t.tolist() for t in tensors]

    x = mine.clone()
    dist.all_reduce(x)
    keep("all_reduce", x)
    x = mine.clone()
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    keep("average", x)
    x = mine.clone()
    dist.broadcast(x, src=1)
    keep("broadcast", x)
    x = mine.clone()
    dist.reduce(x, dst=0)
    keep("reduce", *([x] if rank == 0 else []))
    gathered = [torch.empty_like(mine) for _ in range(RANKS)]
    dist.all_gather(gathered, mine)
    keep("all_gather", *gathered)
    x = torch.empty(8, device="lazy")
    dist.all_gather_into_tensor(x, mine)
    keep("all_gather_into_tensor", x)
    x = torch.empty(2, device="lazy")
    dist.reduce_scatter_tensor(x, mine)
    keep("reduce_scatter_tensor", x)
    x = torch.empty_like(mine)
    dist.all_to_all_single(x, mine)
    keep("all_to_all_single", x)
    x = torch.empty_like(mine)
    dist.scatter(x, [mine, mine + 1] if rank == 0 else None, src=0)
    keep("scatter", x)
    if rank == 0:
        dist.send(mine, dst=1)
    else:
        x = torch.empty_like(mine)
        dist.recv(x, src=0)
        keep("recv", x)
    work = dist.all_reduce(x := mine.clone(), async_op=True)
    work.wait()
    keep("async", x)
    on_host = torch.ones(2)
    dist.all_reduce(on_host)
    found["cpu"] = on_host.tolist()
    dist.barrier()
    return found


def test_collectives():
    """All collectives that DDP, FSDP2 and DTensor use, on lazy and on CPU tensors of one group."""
    zero, one = spread(collectives)
    total = [10.0, 12.0, 14.0, 16.0]
    assert zero["all_reduce"] == one["all_reduce"] == zero["async"] == [total] == zero["reduce"]
    assert zero["average"] == [[5.0, 6.0, 7.0, 8.0]]
    assert zero["broadcast"] == [[10.0, 11.0, 12.0, 13.0]]
    assert zero["all_gather"] == one["all_gather"] == [[0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0]]
    assert zero["all_gather_into_tensor"] == [[0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]]
    assert (zero["reduce_scatter_tensor"], one["reduce_scatter_tensor"]) == ([total[:2]], [total[2:]])
    assert zero["all_to_all_single"] == [[0.0, 1.0, 10.0, 11.0]]
    assert one["scatter"] == [[1.0, 2.0, 3.0, 4.0]]
    assert one["recv"] == [[0.0, 1.0, 2.0, 3.0]]
    assert zero["cpu"] == [2.0, 2.0]


def lists_and_objects(rank: int) -> dict[str, list]:
    """What collectives over lists, objects, subgroups and batches of messages give this rank."""
    mine = torch.arange(2.0, device="lazy") + 10 * rank
    found = {}
    gathered = [torch.empty_like(mine) for _ in range(RANKS)] if rank == 0 else None
    dist.gather(mine, gathered, dst=0)
    found["gather"] = [t.tolist() for t in gathered or ()]
    x = torch.empty_like(mine)
    dist.reduce_scatter(x, [mine, mine + 1])
    found["reduce_scatter"] = x.tolist()
    parts = [torch.empty(rank + 1, device="lazy") for _ in range(RANKS)]
    dist.all_to_all(parts, [torch.full((to + 1,), 10.0 * rank + to, device="lazy") for to in range(RANKS)])
    found["all_to_all"] = [t.tolist() for t in parts]
    objects = [None] * RANKS
    dist.all_gather_object(objects, {"rank": rank, "mean": mine.mean()})
    found["objects"] = [(o["rank"], o["mean"].device.type, o["mean"].item()) for o in objects]
    told = [mine.tolist() if rank == 0 else None]
    dist.broadcast_object_list(told, src=0, device=torch.device("lazy"))
    found["told"] = told
    x, other = mine.clone(), torch.empty_like(mine)
    peer = 1 - rank
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, other, peer)]):
        work.wait()
    found["messages"] = other.tolist()
    alone = dist.new_group([0])
    if rank == 0:
        dist.all_reduce(x, group=alone)
    found["alone"] = x.tolist()
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        x = mine.to(torch.bfloat16) + 1
        dist.all_reduce(x, op=op)
        found[str(op)] = x.tolist()
    from torch.distributed import _functional_collectives as functional

    found["functional"] = (functional.all_reduce(mine, "sum", dist.group.WORLD) * 1).tolist()
    return found


def test_lists_and_objects():
    """gather, lists, objects, batches of messages, subgroups, other reductions and functional collectives."""
    zero, one = spread(lists_and_objects)
    assert zero["gather"] == [[0, 1], [10, 11]] and one["gather"] == []
    assert (zero["reduce_scatter"], one["reduce_scatter"]) == ([10, 12], [12, 14])
    assert (zero["all_to_all"], one["all_to_all"]) == ([[0], [10]], [[1, 1], [11, 11]])
    assert zero["objects"] == one["objects"] == [(0, "lazy", 0.5), (1, "lazy", 10.5)]
    assert zero["told"] == one["told"] == [[0, 1]]
    assert (zero["messages"], one["messages"]) == ([10, 11], [0, 1])
    assert (zero["alone"], one["alone"]) == ([0, 1], [10, 11])
    assert [zero[f"RedOpType.{op}"] for op in ("MAX", "MIN", "PRODUCT")] == [[11, 12], [1, 2], [11, 24]]
    assert zero["functional"] == one["functional"] == [10, 12]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(-1, 1, 32).view(8, 4), torch.linspace(0, 1, 16).view(8, 2)


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int = 5) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def share(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's half of the data, on the device."""
    x, y = data()
    return x[rank::RANKS].to("lazy"), y[rank::RANKS].to("lazy")


def ddp(rank: int) -> list[float]:
    model = nn.parallel.DistributedDataParallel(network().to("lazy"))
    return train(model, *share(rank))


def test_ddp():
    """DistributedDataParallel on two processes gives the loss of one process."""
    zero, one = spread(ddp)
    alone = train(network(), *data())
    together = [(a + b) / 2 for a, b in zip(zero, one, strict=True)]
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)


def fsdp2(rank: int) -> list[float]:
    from torch.distributed.fsdp import fully_shard

    model = network().to("lazy")
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return train(model, *share(rank))


def test_fsdp2():
    """FSDP2's fully_shard trains as one process does."""
    zero, one = spread(fsdp2)
    alone = train(network(), *data())
    together = [(a + b) / 2 for a, b in zip(zero, one, strict=True)]
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def tensor_parallel(rank: int) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("lazy", (RANKS,))
    model = parallelize_module(network().to("lazy"), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x, y = data()
    return train(model, x.to("lazy"), y.to("lazy"))


def test_dtensor():
    """A tensor-parallel MLP of DTensors trains as one process does."""
    zero, one = spread(tensor_parallel)
    alone = train(network(), *data())
    torch.testing.assert_close(zero, alone, rtol=1e-5, atol=1e-5)
    assert zero == one


SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("lazy")
x = torch.ones(2, device="lazy") * (dist.get_rank() + 1)
dist.all_reduce(x)
assert x.tolist() == [3, 3]
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun(tmp_path):
    """torchrun starts a script on two ranks."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_torchrun_counts_the_devices():
    """torchrun --nproc-per-node=lazy starts as many processes as there are devices."""
    program = """
from torch.distributed.run import determine_local_world_size
assert determine_local_world_size("lazy") == 3
"""
    run_python(program, {"LAZY_DRIVER": "simgpu", "LAZY_SIM_SET": "devices=3"})
