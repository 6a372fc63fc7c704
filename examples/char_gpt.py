"""A small GPT on real text that every machine has: the source of Python's standard library.

`edgeswarm train char_gpt.py` trains it, and tells the loss on files that it never saw, in nats per character.
"""

import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import edgeswarm

LENGTH, WIDTH, WIDE, HEADS, BLOCKS, VOCABULARY = 64, 128, 512, 4, 2, 128  # the vocabulary is ASCII


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.project = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDE), nn.GELU(), nn.Linear(WIDE, WIDTH))

    def forward(self, x):
        query, key, value = self.qkv(self.norm(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class CharGPT(nn.Module):
    """[batch, LENGTH] characters -> [batch, LENGTH, VOCABULARY] scores of the next ones."""

    def __init__(self):
        super().__init__()
        self.characters = nn.Embedding.from_pretrained(0.02 * torch.randn(VOCABULARY, WIDTH), freeze=False)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(BLOCKS)], nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.characters.weight  # tied: one weight, even where its two layers are on two devices

    def forward(self, text):
        return self.head(self.blocks(self.characters(text) + self.places))


class Source:
    """Pieces of text, one byte a character. Every tenth file is kept for the evaluation."""

    def __init__(self, pieces, *, evaluation=False):
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        chosen = (file for number, file in enumerate(files) if (number % 10 == 0) == evaluation)
        text = "\n".join(file.read_text("utf-8", errors="replace") for file in chosen)
        self.text = torch.tensor(list(text.encode("ascii", errors="replace")), dtype=torch.uint8)
        self.pieces, self.step = pieces, (len(self.text) - LENGTH - 1) // pieces

    def __len__(self):
        return self.pieces

    def __getitem__(self, index):
        piece = self.text[index * self.step :][: LENGTH + 1]
        return piece[:-1], piece[1:]  # what comes before, and what is to be guessed: the same, one further


def loss(scores, targets):
    """(sum, count): in nats per character. The sums of all devices are divided once, by the mini-batch's count."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum"), targets.numel()


job = edgeswarm.Job(
    model=CharGPT,
    dataset=lambda: Source(4800),
    evaluation_dataset=lambda: Source(480, evaluation=True),
    transform=lambda sample, generator: tuple(part.long() for part in sample),
    loss=loss,
    optimizer=lambda named: torch.optim.AdamW([parameter for _, parameter in named], lr=0.002),
    learning_rate_schedule=lambda round_number: min(1.0, (round_number + 1) / 30),
    clip_gradient_norm=1.0,
    batch_size=16,
)
