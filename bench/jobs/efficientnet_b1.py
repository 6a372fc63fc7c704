"""Job: see paper_models.py."""

from paper_models import make_job  # type: ignore[import-not-found]  # beside this file: a job brings its folder

job = make_job("efficientnet_b1")
