"""README.md: its job file holds together, tried as `edgeswarm train` tries it."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from edgeswarm.job_file import load_job
from edgeswarm_coordinator.evaluation_checks import check_evaluation
from edgeswarm_coordinator.job_checks import check_job

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"


def test_the_job_file_holds_together(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "job.py").write_text(block)
    job = load_job(tmp_path, "job.py")
    torch.manual_seed(job.seed)
    model = job.model()
    checked = check_job(job, model, job.open_dataset(), folder=tmp_path, batch_size=job.batch_size)
    assert (checked.dataset_length, checked.inputs.shape, checked.warnings) == (899, (4, 1, 8, 8), ())
    evaluation = job.open_evaluation_dataset()
    assert check_evaluation(job, model, evaluation, training_inputs=checked.inputs, folder=tmp_path) == 898


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text())
    assert links
    assert [link for link in links if not link.startswith("https:") and not (ROOT / link).exists()] == []
