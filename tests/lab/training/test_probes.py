"""Probes: taken on the way, and without a trace in the training."""

import torch
from tiny_study import BASE, without_times

from whitenorm.lab.data.for_run import load
from whitenorm.lab.training.trainer import train

DBN = BASE.changed({"method": {"name": "dbn", "group_size": 8}})


def test_probes_are_taken_on_the_way_and_change_nothing():
    run = DBN.changed({"epochs": 2})
    probes = {
        "fisher": {"every": 5, "samples": 300},
        "jacobian": {"every": 16, "samples": 8},
    }
    plain, probed = (train(r, load(run)) for r in (run, run.changed({"probes": probes})))
    assert without_times(probed)[:3] == without_times(plain)[:3]
    assert probed.probes["fisher"]["iteration"] == [0, 5, 10, 15, 16]
    assert min(probed.probes["fisher"]["at_90_percent"]) > 1
    assert probed.probes["jacobian"]["iteration"] == [0, 16]


def test_correlations_before_and_after_a_layer_are_kept_as_matrices():
    options = {"every": 16, "layer": "hidden.0.norm", "neurons": 12}
    run = DBN.changed({"epochs": 2, "probes": {"correlations": options}})
    outcome = train(run, load(run))
    plain = train(run.changed({"probes": {}}), load(run))
    assert without_times(outcome)[:3] == without_times(plain)[:3]
    found = outcome.probes["correlations"]
    assert found["iteration"] == [0, 16]
    before, after = (torch.tensor(found[name][-1]) for name in ("before", "after"))
    assert before.shape == after.shape == (12, 12)
    assert torch.equal(after.diagonal(), torch.ones(12))
    group = ~torch.eye(8, dtype=torch.bool)
    assert before[:8, :8][group].abs().mean() > 0.1
    assert after[:8, :8][group].abs().max() < 0.01  # the first group is whitened
    assert after[:8, 8:].abs().mean() > 0.05  # the second is another one


def test_a_probe_of_weights_that_are_no_numbers_is_divergence(monkeypatch):
    def decompose(name, model, dataset, **options):
        calls.append(name)
        if len(calls) == 3:
            raise torch.linalg.LinAlgError("the input matrix contained non-finite values")
        return {"value": 1.0}

    calls = []
    monkeypatch.setattr("whitenorm.lab.training.probes.take", decompose)
    run = BASE.changed({"probes": {"fisher": {"every": 4}}})
    outcome = train(run, load(run))
    assert outcome.status == "diverged"
    assert outcome.reason.startswith("probe 'fisher' failed at update 8: the input matrix")
    assert outcome.probes["fisher"] == {"iteration": [0, 4], "value": [1.0, 1.0]}
