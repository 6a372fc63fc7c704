"""For all tests: signals as a person's terminal has them."""

from __future__ import annotations

import signal

# A shell starts what runs in the background with SIGINT ignored, nohup ignores SIGHUP, and processes inherit that: those
# that the tests start would not hear a Ctrl-C or a terminal that closes.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
