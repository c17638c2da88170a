"""Libraries that use the device unmodified, small and offline."""

import pytest
import torch
from torch import nn


def test_einops(agrees):
    """einops rearranges and reduces."""
    einops = pytest.importorskip("einops")

    def program(device):
        x = torch.arange(24.0).view(2, 3, 4).to(device)
        return einops.rearrange(x, "b (h w) c -> b c h w", w=1), einops.reduce(x, "b h c -> c", "mean")

    agrees(program)


def test_torchmetrics(agrees):
    """torchmetrics accumulates on the device."""
    torchmetrics = pytest.importorskip("torchmetrics")

    def program(device):
        metric = torchmetrics.classification.MulticlassAccuracy(num_classes=3).to(device)
        metric.update(torch.eye(3).to(device), torch.tensor([0, 1, 1]).to(device))
        return metric.compute()

    agrees(program)


@pytest.fixture
def accelerate(monkeypatch):
    """accelerate knows devices by a list of its own; this variable names another."""
    module = pytest.importorskip("accelerate")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "lazy")
    module.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield module
    module.state.AcceleratorState._reset_state(reset_partial_state=True)


def tiny_gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config)


class Sequences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


def test_trainer(tmp_path, accelerate):
    """transformers.Trainer with ACCELERATE_TORCH_DEVICE=lazy trains a small GPT-2 on the device."""
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(
        tmp_path, max_steps=6, per_device_train_batch_size=4, learning_rate=1e-2, report_to=[], save_strategy="no"
    )
    assert arguments.device.type == "lazy"
    model = tiny_gpt2()
    result = transformers.Trainer(model, arguments, train_dataset=Sequences()).train()
    assert model.device.type == "lazy" and result.training_loss < 4.2


def test_generate():
    """transformers' generate with a key/value cache gives the CPU's tokens."""
    model = tiny_gpt2().eval()
    prompt = torch.tensor([[1, 2, 3]])
    expected = model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
    found = model.to("lazy").generate(prompt.to("lazy"), max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert torch.equal(found.cpu(), expected)


def test_accelerate(accelerate):
    """accelerate with ACCELERATE_TORCH_DEVICE=lazy prepares model, optimizer and loader for the device."""
    accelerator = accelerate.Accelerator()
    assert accelerator.device.type == "lazy"
    layer = nn.Linear(4, 1)
    loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4)
    model, optimizer, loader = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.01), loader)
    losses = []
    for batch in loader:
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert batch.is_lazy and losses[1] < losses[0]


@pytest.fixture
def regression(tmp_path):
    """`regression(precision)` fits a line with Lightning's Trainer on the device; its model, trainer and first loss."""
    lightning = pytest.importorskip("pytorch_lightning")
    import lazy_backend.lightning  # noqa: F401 - registers the accelerator

    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.losses, self.dtypes = nn.Linear(4, 1), [], set()

        def training_step(self, batch, _):
            x, y = batch
            prediction = self.layer(x)
            self.dtypes.add(prediction.dtype)
            loss = nn.functional.mse_loss(prediction.float(), y)
            self.losses.append(loss.detach())
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    def fit(precision):
        x = torch.randn(64, 4)
        data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
        trainer = lightning.Trainer(
            accelerator="lazy",
            strategy="lazy",
            devices=1,
            max_epochs=3,
            precision=precision,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        model = Line()
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=16))
        assert trainer.strategy.root_device.type == "lazy" and model.losses[0].is_lazy
        assert trainer.callback_metrics["loss"].item() < model.losses[0].item() / 2
        trainer.save_checkpoint(tmp_path / "line.ckpt")
        saved = torch.load(tmp_path / "line.ckpt", map_location="cpu")["state_dict"]
        assert torch.equal(saved["layer.weight"], model.layer.weight.detach().cpu())
        return model

    return fit


def test_lightning(regression):
    """pytorch-lightning: Trainer(accelerator="lazy", strategy="lazy") after `import lazy_backend.lightning`."""
    assert regression("32-true").dtypes == {torch.float32}


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)])
def test_lightning_mixed_precision(regression, precision, dtype):
    """pytorch-lightning with precision bf16-mixed, and 16-mixed with its GradScaler."""
    assert regression(precision).dtypes == {dtype}


def test_lightning_counts_devices():
    """pytorch-lightning's devices= takes a count, -1, a list or text."""
    pytest.importorskip("pytorch_lightning")
    from lazy_backend.lightning import LazyAccelerator

    everything = list(range(torch.lazy.device_count()))
    for given, expected in ((1, [0]), (-1, everything), ("-1", everything), ([0], [0]), ("0,", [0]), ("1", [0])):
        assert LazyAccelerator.parse_devices(given) == expected
    assert LazyAccelerator.get_parallel_devices([0]) == [torch.device("lazy:0")]


def test_peft():
    """peft fine-tunes LoRA adapters of a random model."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(tiny_gpt2(), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    model.to("lazy")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    tokens = torch.arange(16, device="lazy")[None]
    losses = []
    for _ in range(5):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
