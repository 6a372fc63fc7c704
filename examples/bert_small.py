"""BERT-small (4 layers, hidden size 512, 8 heads), with random weights, on real text that every machine has.

`edgeswarm train bert_small.py` trains it to tell from three lines of source which module of Python they are from.
"""

import re
import sysconfig
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import edgeswarm

MODULES = ("argparse", "difflib", "doctest", "inspect", "ipaddress", "subprocess", "tarfile", "typing")
LENGTH, VOCABULARY = 24, 4096  # words of an item, and words that have a number of their own; 0 is padding, 1 any other


def model():
    from transformers import BertConfig, BertForSequenceClassification

    small = {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
    text = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH}
    return BertForSequenceClassification(BertConfig(num_labels=len(MODULES), **small, **text))


def words(text):
    return re.findall(r"\w+|[^\w\s]", text)


class Excerpts:
    """Items: the numbers of an excerpt's words, int16 [LENGTH], and its module. Every fifth is for the evaluation."""

    def __init__(self, *, evaluation=False):
        folder = Path(sysconfig.get_paths()["stdlib"])
        lines = [
            [line for line in (folder / f"{name}.py").read_text("utf-8").splitlines() if line.strip()]
            for name in MODULES
        ]
        items = [(" ".join(part[at : at + 3]), label) for label, part in enumerate(lines) for at in range(0, 600, 3)]
        # The vocabulary is that of the training, for the evaluation too.
        counts = Counter(word for number, (text, _) in enumerate(items) if number % 5 for word in words(text))
        numbers = {word: number for number, (word, _) in enumerate(counts.most_common(VOCABULARY - 2), start=2)}
        self.items = []
        for number, (text, label) in enumerate(items):
            if (number % 5 == 0) == evaluation:
                found = [numbers.get(word, 1) for word in words(text)][:LENGTH]
                self.items.append((np.array(found + [0] * (LENGTH - len(found)), np.int16), label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def transform(sample, generator):
    """The model is called as model(input_ids=..., attention_mask=...)."""
    ids, label = torch.from_numpy(sample[0]).long(), sample[1]
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}, label


job = edgeswarm.Job(
    model=model,
    dataset=Excerpts,
    evaluation_dataset=lambda: Excerpts(evaluation=True),
    transform=transform,
    loss=lambda output, labels: functional.cross_entropy(output.logits, labels),
    metrics={"accuracy": lambda output, labels: (output.logits.argmax(1) == labels).float().mean()},
    best_metric="accuracy",
    optimizer=lambda named: torch.optim.AdamW([parameter for _, parameter in named], lr=0.0003),
    learning_rate_schedule=lambda round_number: min(1.0, (round_number + 1) / 20),
    clip_gradient_norm=1.0,
    batch_size=32,
    epochs=5,
)
