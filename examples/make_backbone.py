"""Plain PyTorch, on one machine and in seconds: the backbone for fine_tuning.py, trained on the digits 0 to 4.

`python make_backbone.py` writes backbone.safetensors beside this file: the state_dict of the very model that the job
builds, its backbone trained and its head as it begins.
"""

from pathlib import Path

import torch
from fine_tuning import WIDTH, Backbone, Digits, FineTuned, transform
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader


def dataset(*, evaluation):
    digits = Digits(0, evaluation=evaluation)
    return [transform(digits[index], None) for index in range(len(digits))]


def trained_backbone(epochs=3):
    backbone = Backbone()
    model = nn.Sequential(backbone, nn.Flatten(), nn.Linear(WIDTH * 4, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for _ in range(epochs):
        for images, labels in DataLoader(dataset(evaluation=False), batch_size=32, shuffle=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        images, labels = next(iter(DataLoader(dataset(evaluation=True), batch_size=1000)))
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    print(f"the backbone tells 0 to 4 apart in {accuracy:.1%} of the images that it never saw")
    return backbone


if __name__ == "__main__":
    torch.manual_seed(0)
    model = FineTuned()
    model.backbone.load_state_dict(trained_backbone().state_dict())
    save_file(model.state_dict(), Path(__file__).with_name("backbone.safetensors"))
