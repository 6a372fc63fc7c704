"""What the user's code draws outside of model, transform and loss: the same in every process that runs it. Imports no torch.

    the command    | load job | dataset()  evaluation_dataset() |      each | begins at a seed
    data service   | load job | dataset()  evaluation_dataset() |
    --resume       | load job | dataset()  evaluation_dataset() |

A split without a seed would be another one in each of them: samples that are evaluated would be trained on as well.
"""

from __future__ import annotations

import random
import sys
from typing import Any


def begin_draws(seed: int) -> None:
    """Python's `random`, NumPy's legacy generator and PyTorch's default ones begin at this seed, 0 or larger.

    PyTorch's where it is imported: who imports it later finds it at a seed of its own, which is always the same.
    """
    import numpy as np  # a command that only shows its help can do without

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
