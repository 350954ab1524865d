"""A dry run: every network of every study makes an iteration."""

import math

import pytest

from whitenorm.lab.execution.dry_run import dry_run
from whitenorm.lab.studies.catalogue import STUDIES

SCALES = [  # the others have the same networks as "small", larger or for longer
    pytest.param(name, scale, marks=[] if scale == "small" else [pytest.mark.slow])
    for name, study in STUDIES.items()
    for scale in study.scales
]


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_network_of_every_study_makes_an_update(name, scale):
    """On made-up data: each is built, trained for a step, evaluated and probed."""
    plan = STUDIES[name].scales[scale]
    trials = list(dry_run(plan))
    assert {trial.panel for trial in trials} <= {panel.name for panel in plan.panels}
    assert trials
    for trial in trials:
        if trial.run.task == "train":
            assert trial.parameters > 0
            assert math.isfinite(trial.loss)
