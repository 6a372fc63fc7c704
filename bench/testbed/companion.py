"""What runs on the other devices of a testbed while one is being profiled: computing, as in a training.

The devices of a testbed share the machine's caches and its memory's bandwidth. One that computes alone was 8 to 14 % faster
than beside others, as it is in every training; real devices don't know each other's caches.

    python companion.py      until it is killed; says `ready` when it computes
"""

from __future__ import annotations

import time

# As devices of a pipeline do on average: the rest of the time they wait for each other.
BUSY = 0.7
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
    while True:
        begin = time.monotonic()
        block(inputs).sum().backward()
        time.sleep((1 / BUSY - 1) * (time.monotonic() - begin))


if __name__ == "__main__":
    main()
