"""Serialization, copies and exchange with other libraries."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn


def test_save_and_load(tmp_path):
    """torch.save and torch.load: to the same device, map_location, weights_only, mmap."""
    x = torch.arange(5.0, device="lazy")
    path = tmp_path / "x.pt"
    torch.save({"x": x, "view": x[1:3]}, path)
    loaded = torch.load(path)
    assert loaded["x"].device == torch.device("lazy:0") and torch.equal(loaded["x"].cpu(), x.cpu())
    loaded["x"][1] = 9
    assert loaded["view"][0].item() == 9, "views share their storage after loading"
    assert torch.load(path, map_location="cpu")["x"].device.type == "cpu"
    assert torch.load(path, map_location="cpu", mmap=True)["view"].tolist() == [1, 2]
    torch.save(torch.ones(2), path)
    assert torch.load(path, map_location="lazy").is_lazy


def test_state_dict_round_trip():
    """Module and optimizer state dicts save and load across devices."""
    model = nn.Linear(3, 2).to("lazy")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device="lazy")).sum().backward()
    optimizer.step()
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, map_location="cpu")
    other = nn.Linear(3, 2)
    other.load_state_dict(saved["model"])
    assert torch.equal(other.weight, model.weight.cpu())
    resumed = torch.optim.Adam(model.parameters())
    resumed.load_state_dict(saved["optimizer"])
    assert resumed.state[model.weight]["exp_avg"].is_lazy


def test_pickle_and_deepcopy():
    """pickle, copy.deepcopy and Tensor.clone of tensors, parameters and modules."""
    x = torch.arange(4.0, device="lazy")
    assert torch.equal(pickle.loads(pickle.dumps(x)).cpu(), x.cpu())
    layer = nn.Linear(2, 2).to("lazy")
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.weight.add_(1)
    assert twin.weight.is_lazy and not torch.equal(twin.weight.cpu(), layer.weight.cpu())
    pair = copy.deepcopy({"a": x, "b": x[1:]})
    pair["a"][1] = 7
    assert pair["b"][0].item() == 7


def test_safetensors(tmp_path):
    """safetensors saves lazy tensors; it knows no device but its own list, so loading goes through the CPU."""
    safetensors = pytest.importorskip("safetensors.torch")
    x = torch.arange(6.0, device="lazy").view(2, 3)
    safetensors.save_file({"x": x}, tmp_path / "x.safetensors")
    loaded = safetensors.load_file(tmp_path / "x.safetensors")["x"].to("lazy")
    assert torch.equal(loaded.cpu(), x.cpu())


def test_numpy():
    """NumPy: from an array, to one through the host; a direct view is refused with advice."""
    array = np.arange(4, dtype=np.float32)
    x = torch.from_numpy(array).to("lazy") * 2
    assert (x.cpu().numpy() == array * 2).all() and x.tolist() == [0, 2, 4, 6]
    with pytest.raises(TypeError, match=r"\.cpu\(\)"):
        x.numpy()


def test_dlpack():
    """torch.utils.dlpack: a host tensor that shares no memory with later writes is given through .cpu()."""
    x = torch.arange(4.0, device="lazy")
    assert torch.equal(torch.from_dlpack(x.cpu()), torch.arange(4.0))
    with pytest.raises((BufferError, RuntimeError, ValueError)):
        torch.from_dlpack(x)


def test_share_memory_says_what_to_do():
    """share_memory_ of a lazy tensor raises and names the way: through the CPU."""
    with pytest.raises(RuntimeError, match=r"cpu\(\)"):
        torch.ones(2, device="lazy").share_memory_()


def double(inbox, outbox) -> None:
    """Runs in a spawned process: takes a lazy tensor, doubles it on this process's device."""
    x = inbox.get()
    assert x.is_lazy and x.requires_grad
    outbox.put((x * 2).detach())
    inbox.get()  # lives until the result has been read


def test_spawned_process():
    """multiprocessing with spawn: each process opens the device; lazy tensors travel through the host."""
    context = torch.multiprocessing.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    process = context.Process(target=double, args=(there, back))
    process.start()
    there.put(torch.ones(3, device="lazy", requires_grad=True))
    y = back.get(timeout=120)
    assert y.is_lazy and y.tolist() == [2, 2, 2]
    there.put(None)
    process.join(60)
    assert process.exitcode == 0


def test_data_loader_workers():
    """DataLoader with worker processes feeds the device."""
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="spawn")
    assert sum(batch.to("lazy").sum().item() for (batch,) in loader) == 28


def test_storage():
    """Storages: size, shared by views, set_, resize_, data_ptr differs between tensors."""
    x = torch.arange(6.0, device="lazy")
    assert x.untyped_storage().nbytes() == 24 and x[2:].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert x.data_ptr() != torch.ones(1, device="lazy").data_ptr()
    y = torch.empty(0, device="lazy").set_(x.untyped_storage(), 2, (2,), (1,))
    assert y.cpu().tolist() == [2, 3]
    x.resize_(3, 3)[2].fill_(5)
    assert x.cpu()[0].tolist() == [0, 1, 2] and x.cpu()[2].tolist() == [5, 5, 5]
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
