"""A small GPT learns characters of Python's license and manual, then continues a prompt.

python examples/gpt.py --device cpu
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TEXT = Path(__file__).parent / "data" / "python.txt"
CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 128, 128, 4, 4, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position(positions))))


@torch.no_grad()
def sample(model: GPT, tokens: Tensor, length: int) -> Tensor:
    """Continues `tokens` (1, n) by `length` characters drawn at temperature 0.7."""
    draws = torch.Generator().manual_seed(0)
    for _ in range(length):
        probabilities = F.softmax(model(tokens[:, -CONTEXT:])[0, -1] / 0.7, dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(probabilities.cpu(), 1, generator=draws).to(tokens)[None]], dim=1)
    return tokens


def run(device: str, steps: int, report: Callable[[int, Tensor], None]) -> dict[str, object]:
    """Trains for `steps` steps; `report(step, loss)` after each. Returns what the model then writes."""
    torch.manual_seed(0)
    text = TEXT.read_text()
    alphabet = sorted(set(text))
    data = torch.tensor([alphabet.index(c) for c in text])
    batches = torch.Generator().manual_seed(1)

    model = GPT(len(alphabet)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        starts = torch.randint(len(data) - CONTEXT, (BATCH,), generator=batches)
        window = torch.stack([data[i : i + CONTEXT + 1] for i in starts]).to(device)
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        report(step, loss)

    prompt = torch.tensor([[alphabet.index(c) for c in "The statement "]], device=device)
    return {"text": "".join(alphabet[i] for i in sample(model, prompt, 200)[0].tolist())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    def report(step: int, loss: Tensor) -> None:
        if step % 10 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)

    print(run(args.device, args.steps, report)["text"])


if __name__ == "__main__":
    main()
