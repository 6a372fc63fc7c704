"""Job: see digits.py."""

from digits import make_job  # type: ignore[import-not-found]  # beside this file: a job brings its folder

job = make_job("cnn")
