"""Serialization, copies and exchange with other libraries."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from tests.integration.process import run_python


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
    """NumPy: from an array; to one by torch's rule for devices: a TypeError that advises cpu(), or force=True."""
    array = np.arange(4, dtype=np.float32)
    x = torch.from_numpy(array).to("lazy") * 2
    assert (x.cpu().numpy() == array * 2).all() and x.tolist() == [0, 2, 4, 6]
    for refused in (x.numpy, x.__array__):
        with pytest.raises(TypeError, match=r"\.cpu\(\)"):
            refused()
    assert (x.numpy(force=True) == array * 2).all()


@pytest.fixture
def visible():
    if not torch.lazy.get_device_properties().is_integrated:
        pytest.skip("this device's memory is not visible to the host")


def test_dlpack_shares_host_visible_memory(visible):
    """torch.from_dlpack, np.from_dlpack and to_dlpack share memory that the host sees, after a read, without a copy."""
    x = torch.arange(6.0, device="lazy").view(2, 3)[:, 1:] + 1  # recorded, not yet run
    array, tensor = np.from_dlpack(x), torch.from_dlpack(x)
    capsule = torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    assert x.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLCPU, 0)
    assert array.tolist() == tensor.tolist() == capsule.tolist() == [[2, 3], [5, 6]]
    tensor[0, 0] = 9  # seen by the device
    assert (x * 1).tolist() == [[9, 3], [5, 6]]
    x += 1  # and the device's writes by the host, once they have run
    torch.lazy.synchronize()
    assert array.tolist() == capsule.tolist() == [[10, 4], [6, 7]]
    kept = np.from_dlpack(torch.arange(3, device="lazy"))
    torch.zeros(1000, device="lazy").cpu()  # other tensors do not get its memory while the array lives
    assert kept.tolist() == [0, 1, 2]
    copied = np.from_dlpack(x, copy=True)
    copied[0, 0] = 0
    assert x[0, 0].item() == 10


def test_dlpack_keeps_torch_s_rules():
    """DLPack refuses what torch refuses everywhere, and brings arrays of others to the device."""
    x = torch.ones(2, device="lazy", requires_grad=True)
    with pytest.raises(BufferError, match="detach"):
        np.from_dlpack(x)
    assert torch.from_dlpack(np.arange(3), device="lazy").is_lazy
    y = torch.from_dlpack(x.detach(), device="lazy")
    assert y.is_lazy and y.tolist() == [1, 1]


def test_dlpack_of_hidden_memory_is_refused():
    """Where the host does not see the memory, sharing is refused with advice; a consumer on the CPU gets a copy."""
    program = """
import numpy as np, torch
x = torch.arange(3.0, device="lazy")
for share in (torch.from_dlpack, np.from_dlpack, torch.utils.dlpack.to_dlpack):
    try:
        share(x)
    except (BufferError, RuntimeError) as error:
        assert "cpu()" in str(error) or share is np.from_dlpack, error
    else:
        raise SystemExit(f"{share} shared memory that the host cannot see")
assert np.from_dlpack(x, device="cpu").tolist() == [0, 1, 2]
"""
    run_python(program, {"LAZY_DRIVER": "simgpu"})


def test_share_memory_says_what_to_do():
    """share_memory_ of a lazy tensor raises and names the way, through the CPU; is_shared() stays False."""
    x = torch.ones(2, device="lazy")
    assert not x.is_shared()
    with pytest.raises(RuntimeError, match=r"cpu\(\)"):
        x.share_memory_()
    assert not x.is_shared() and not x.untyped_storage().is_shared()
    assert torch.ones(2).share_memory_().is_shared()


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
    process = context.Process(target=double, args=(there, back), daemon=True)
    process.start()
    there.put(torch.ones(3, device="lazy", requires_grad=True))
    y = back.get(timeout=300)
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


def test_storage_objects():
    """Storages by themselves: copies, deepcopy, pickle, reads and writes of elements, to and from the CPU."""
    x = torch.arange(3.0, device="lazy")
    storage = x.untyped_storage()
    assert bytes(storage.tolist()) == np.arange(3, dtype=np.float32).tobytes() and storage[4 + 3] == 0x3F
    for twin in (storage.clone(), copy.deepcopy(storage), storage.cpu().to(device="lazy")):
        assert twin.device == torch.device("lazy:0") and twin.tolist() == storage.tolist()
        assert twin.data_ptr() != storage.data_ptr()
    storage.copy_(torch.tensor([4.0, 5.0, 6.0]).untyped_storage())
    assert x.tolist() == [4, 5, 6]
    storage.fill_(0)
    assert (x + 1).tolist() == [1, 1, 1]
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True)
    again = pickle.loads(pickle.dumps(typed))
    assert again.device == storage.device and again.tolist() == [0, 0, 0]


def test_views_are_saved_as_they_are(tmp_path):
    """torch.save keeps strides, conjugation and negation, dtypes, and the legacy format loads."""
    z = torch.tensor([[1 + 2j, 3 - 4j]], device="lazy")
    for name, view in {"conj": z.conj(), "neg": z.conj().imag, "T": z.T, "half": z.real.half()[:, 1:]}.items():
        for zipped in (True, False):
            torch.save(view, tmp_path / "z.pt", _use_new_zipfile_serialization=zipped)
            loaded = torch.load(tmp_path / "z.pt")
            assert loaded.is_lazy and loaded.stride() == view.stride() and loaded.dtype == view.dtype, name
            assert (loaded.is_conj(), loaded.is_neg()) == (view.is_conj(), view.is_neg()), name
            assert torch.equal(loaded.cpu(), view.cpu()), name


def test_modules_are_saved_whole(tmp_path):
    """A whole module, a Parameter, a scripted and a traced module save and load, to the device and to the CPU."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).to("lazy")
    x = torch.ones(1, 2, device="lazy")
    torch.save(model, tmp_path / "model.pt")
    torch.jit.save(torch.jit.trace(model, x), tmp_path / "traced.pt")
    torch.jit.save(torch.jit.script(model), tmp_path / "scripted.pt")
    for where in ("lazy", "cpu"):
        loaded = torch.load(tmp_path / "model.pt", weights_only=False, map_location=where)
        for m in (
            loaded,
            *(torch.jit.load(tmp_path / f"{how}.pt", map_location=where) for how in ("traced", "scripted")),
        ):
            y = m(x.to(where))
            assert y.device.type == where and torch.allclose(y.cpu(), model(x).cpu())


def test_printing():
    """repr, format and iteration read the values."""

    def program(device: str) -> list[str]:
        x = torch.tensor([[1.5, float("nan")], [-1e10, float("inf")]], device=device)
        shown = [repr(t) for t in (x, x > 0, x[0, 0], nn.Parameter(x), x.to(torch.complex64), x.half(), x[:0])]
        shown = [text.replace(", device='lazy:0'", "") for text in shown]
        return [*shown, f"{x[0, 0]:.3f}", str(x[1, 0].item()), str([float(v) for v in x[0]]), str(x.flatten().tolist())]

    assert program("lazy") == program("cpu")
