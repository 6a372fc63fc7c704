"""What the user's code draws outside of model, transform and loss: the same in every process that runs it. Imports no torch.

    the command    | load job | dataset()  evaluation_dataset() |      each | begins at one seed
    data service   | load job | dataset()  evaluation_dataset() |
    --resume       | load job | dataset()  evaluation_dataset() |

A split without a seed would be another one in each of them: samples that are evaluated would be trained on as well. The seed is
no job's: that one the command line may change, for the command alone, and an editor from one `--resume` to the next.
"""

from __future__ import annotations

import random
import sys
from typing import Any

_SEED = 0


def begin_draws() -> None:
    """Python's `random`, NumPy's legacy generator and PyTorch's default ones begin anew.

    PyTorch's where it is imported: who imports it later finds it at a seed of its own, which is always the same.
    """
    import numpy as np  # a command that only shows its help can do without

    random.seed(_SEED)
    np.random.seed(_SEED)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(_SEED)
