"""For all tests: signals as a person's terminal has them, and the same examples each time."""

from __future__ import annotations

import signal

from hypothesis import settings

# A shell starts what runs in the background with SIGINT ignored, nohup ignores SIGHUP, and processes inherit that: those
# that the tests start would not hear a Ctrl-C or a terminal that closes.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# So that what turns red is what was changed. `pytest --hypothesis-profile=random` looks for other examples. No deadline: beside
# other work an example may take many times as long.
settings.register_profile("random", derandomize=False, deadline=None)
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
