"""What runs on the other devices of a testbed while one is being profiled: computing, as in a training.

The devices of a testbed share the machine's processors, their caches and its memory's bandwidth. One that computes alone was 8
to 14 % faster than beside others, as it is in every training; real devices know nothing of each other's caches.

    python companion.py      until it is killed; says `ready` when it computes
"""

from __future__ import annotations

BATCH = 32


def main() -> None:
    import torch  # not above: whoever starts it needs the file's name alone

    torch.set_num_threads(1)
    wide, narrow = 192, 32
    block = torch.nn.Sequential(
        torch.nn.Conv2d(narrow, wide, 1),
        torch.nn.BatchNorm2d(wide),
        torch.nn.ReLU6(),
        torch.nn.Conv2d(wide, wide, 3, padding=1, groups=wide),
        torch.nn.BatchNorm2d(wide),
        torch.nn.ReLU6(),
        torch.nn.Conv2d(wide, narrow, 1),
    )
    inputs = torch.randn(BATCH, narrow, 16, 16)
    print("ready", flush=True)
    # Its quota is its limit, as it is where a good plan leaves a device little to wait for.
    while True:
        block(inputs).sum().backward()


if __name__ == "__main__":
    main()
