"""Models of `transformers`, built small and random: the same losses, gradients, steps and tokens as on the CPU."""

import warnings

import pytest
import torch

pytest.importorskip("transformers")
from tests.models.zoo import ARCHITECTURES, DECODERS, GENERATORS

RELATIVE = 1e-4
# Every architecture is a minute or less; the quick suite takes one of each family.
QUICK = {"gpt2", "llama", "bert", "t5", "vit"}


def each(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest value: what is left of a tensor's meaning after rounding."""
    scale = expected.abs().max().clamp_min(1e-3)
    return ((actual.cpu() - expected).abs().max() / scale).item()


@pytest.mark.parametrize("name", each(ARCHITECTURES))
def test_loss_gradients_and_a_step(device, name):
    def train(where):
        model = ARCHITECTURES[name].build().to(where).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
        loss = model(**ARCHITECTURES[name].inputs(where)).loss
        loss.backward()
        grads = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        return {"loss": loss.detach()} | grads | {f"{key} after": p.detach() for key, p in model.named_parameters()}

    expected, actual = train("cpu"), train(device)
    assert actual.keys() == expected.keys()
    scale = max(value.abs().max().item() for key, value in expected.items() if not key.endswith("after"))
    far = {
        key: error
        for key, value in expected.items()
        if (error := difference(actual[key], value)) > RELATIVE
        and (actual[key].cpu() - value).abs().max().item() > 1e-6 * scale
    }
    assert not far


@pytest.mark.parametrize("name", each(GENERATORS))
def test_eight_generated_tokens(device, name):
    def generate(where):
        model = ARCHITECTURES[name].build().to(where).eval()
        prompt = ARCHITECTURES[name].inputs(where)["input_ids"]
        with torch.no_grad():
            tokens = model.generate(prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False)
        return tokens.tolist()

    assert generate(device) == generate("cpu")


@pytest.mark.parametrize("name", each(DECODERS))
def test_decoders_never_leave_the_device(device, name):
    if device == "cpu":
        pytest.skip("the cpu has no host routes")
    model = ARCHITECTURES[name].build().to(device).train()
    inputs = ARCHITECTURES[name].inputs(device)
    torch.lazy.synchronize()
    torch.lazy.reset_stats()
    model(**inputs).loss.backward()
    torch.lazy.synchronize()
    assert torch.lazy.stats()["host_ops_by_name"] == {}
