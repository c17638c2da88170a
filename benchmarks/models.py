"""The networks that the workloads train and run: ordinary modules."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention over (batch, time, width), optionally causal, optionally with a key/value cache."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, time, width))

    def decode(self, x: Tensor, cache: Tensor, position: int) -> Tensor:
        """One new token (batch, 1, width); `cache` is (2, batch, heads, length, width // heads), written in place."""
        batch, _, width = x.shape
        q, k, v = self.qkv(x).view(batch, 1, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        cache[0, :, :, position : position + 1] = k
        cache[1, :, :, position : position + 1] = v
        keys, values = cache[:, :, :, : position + 1]
        return self.out(F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).reshape(batch, 1, width))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))

    def decode(self, x: Tensor, cache: Tensor, position: int) -> Tensor:
        """As `Attention.decode`."""
        x = x + self.attention.decode(self.norm1(x), cache, position)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Tokens (batch, time) -> logits (batch, time, vocabulary): GPT-like when causal, BERT-like when not."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, layers: int, causal: bool = True) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))

    def decode(self, tokens: Tensor, caches: list[Tensor], position: int) -> Tensor:
        """Logits (batch, vocabulary) after one more token (batch, 1)."""
        x = self.token(tokens) + self.position.weight[position]
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block.decode(x, cache, position)
        return self.head(self.norm(x))[:, -1]


class BasicBlock(nn.Module):
    """ResNet's block of two 3x3 convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet18(classes: int = 100) -> nn.Module:
    """ResNet-18 for (batch, 3, h, w) images."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    strides = [1, 1, 2, 1, 2, 1, 2, 1]
    blocks = [BasicBlock(a, b, s) for a, b, s in zip(widths, widths[1:], strides, strict=False)]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class UNetBlock(nn.Module):
    """Group norm, SiLU, convolution, twice, with an embedding added between, as in diffusion models."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, channels), nn.GroupNorm(8, channels)
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.embed = nn.Linear(channels, channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.embed(F.silu(time))[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(y)))


class Tagger(nn.Module):
    """An LSTM over token sequences (batch, time) -> logits (batch, time, classes)."""

    def __init__(self, vocabulary: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.token(tokens))[0])


class Recommender(nn.Module):
    """Categorical features (batch, fields) and dense ones (batch, dense) -> click logits (batch,)."""

    pairs: Tensor

    def __init__(self, rows: int, fields: int, dense: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(fields))
        self.bottom = nn.Sequential(nn.Linear(dense, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        crossed = (fields + 1) * fields // 2
        self.top = nn.Sequential(nn.Linear(crossed + width, 128), nn.ReLU(), nn.Linear(128, 1))
        self.register_buffer("pairs", torch.triu_indices(fields + 1, fields + 1, offset=1))

    def forward(self, categories: Tensor, dense: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *(t(categories[:, i]) for i, t in enumerate(self.tables))], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        crossed = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, crossed], dim=1))[:, 0]
