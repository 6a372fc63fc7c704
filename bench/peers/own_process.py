"""What is timed for peers on this machine, in a process like theirs."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar
from unittest import mock

from bench.measuring import one_thread
from edgeswarm_agent.supervisor import ALLOCATOR_ENVIRONMENT

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def in_own_process(
    function: Callable[_Parameters, _Result], *args: _Parameters.args, **options: _Parameters.kwargs
) -> _Result:
    """With the allocator's settings that ranks have (launch.py), which hold from a process's start on, and one thread.

    function: of a module, which the process imports.
    """
    context = multiprocessing.get_context("spawn")
    with (
        mock.patch.dict(os.environ, one_thread(ALLOCATOR_ENVIRONMENT)),
        ProcessPoolExecutor(1, mp_context=context) as pool,
    ):
        return pool.submit(function, *args, **options).result()
