"""The training loop: deterministic, resumable, measured without being disturbed."""

import errno
import json
import os
from dataclasses import replace

import pytest
import torch
from PIL import Image
from tiny_study import BASE, assert_same, without_times
from torch.nn import functional as F

from whitenorm.lab.data.datasets import synthetic_dataset
from whitenorm.lab.data.for_run import load, synthesise
from whitenorm.lab.data.images import load_imagefolder
from whitenorm.lab.networks import methods
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.randomness import generator
from whitenorm.lab.records.record import Record
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.batches import FolderBatches, Pictures, TensorBatches
from whitenorm.lab.training.checkpoints import Checkpoint, CheckpointError
from whitenorm.lab.training.optim import learning_rate, make_optimiser
from whitenorm.lab.training.trainer import Interrupted, Trainer, train

CPU = torch.device("cpu")
DBN = BASE.changed({"method": {"name": "dbn", "group_size": 8}})
# Dropout, augmentation and momentum: everything that a resumed training has to remember.
PICTURES = Run(
    {"name": "cifar10", "augment": "crop+flip"},
    {"name": "wrn", "depth": 10, "widen": 1, "dropout": 0.3, "placement": "stem"},
    {"name": "dbn"},
    {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True},
    {"name": "steps", "at": [1], "factor": 0.2},
    batch_size=4,
    epochs=3,
    evaluate_every=2,
)


def pictures():
    return synthetic_dataset("cifar10", n=16, augment="crop+flip")


# --- the update ---------------------------------------------------------------------------------


def test_an_update_is_the_optimisers():
    """Three epochs against the loop that anyone would write."""
    run = BASE.changed(
        {
            "method": {"name": "bn"},
            "optimiser": {"name": "sgd", "lr": 0.2, "momentum": 0.9, "weight_decay": 0.01},
            "schedule": {"name": "steps", "at": [1], "factor": 0.5},
            "epochs": 3,
            "precision": "float64",
        }
    )
    data = load(run)
    model = build_model(
        "mlp",
        make_method("bn"),
        num_classes=10,
        input_shape=(1, 8, 8),
        hidden=[16],
        generator=generator(0, "initialisation"),
    ).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
    losses = []
    for epoch in range(3):
        total = 0.0
        optimiser.param_groups[0]["lr"] = 0.2 if epoch == 0 else 0.1
        order = torch.randperm(512, generator=generator(0, "order", epoch))
        for chosen in order.split(64):
            loss = F.cross_entropy(model(data.train_x[chosen].double()), data.train_y[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item() / 8
        losses.append(total)
    outcome = train(run, data)
    assert outcome.history["train_loss"] == pytest.approx(losses, rel=1e-9)
    assert outcome.history["rate"] == [0.2, 0.1, 0.1]
    model.eval()
    wrong = (model(data.test_x.double()).argmax(1) != data.test_y).double().mean()
    assert outcome.final["test_error"] == pytest.approx(100 * float(wrong))


def test_schedules_follow_the_position():
    def rates(schedule, iterations):
        return [learning_rate(schedule, 8.0, i, steps_per_epoch=10) for i in iterations]

    assert rates({"name": "constant"}, [0, 1000]) == [8, 8]
    assert rates({"name": "halve", "interval": 40}, [0, 39, 40, 80]) == [8, 8, 4, 2]
    steps = {"name": "steps", "at": [8, 12], "factor": 0.5}
    assert rates(steps, [79, 80, 119, 120]) == [8, 4, 4, 2]
    with pytest.raises(ValueError, match="unknown schedule 'cosine'; there are constant, halve"):
        rates({"name": "cosine"}, [0])


def test_optimisers_take_their_options():
    parameter = [torch.nn.Parameter(torch.zeros(1))]
    adam = make_optimiser({"name": "adam", "lr": 0.1, "betas": [0.8, 0.9]}, parameter)
    assert isinstance(adam, torch.optim.Adam)
    assert adam.defaults["betas"] == (0.8, 0.9)
    with pytest.raises(ValueError, match="unknown optimiser 'lion'; there are sgd, adam"):
        make_optimiser({"name": "lion", "lr": 0.1}, parameter)


def test_accumulated_parts_are_one_batch():
    run = BASE.changed({"precision": "float64"})
    once = train(run, load(run))
    parts = train(run.changed({"accumulate": 4}), load(run))
    assert parts.history["train_loss"] == pytest.approx(once.history["train_loss"], rel=1e-9)


@pytest.mark.parametrize("precision", ["float64", "bf16"])
def test_precisions_differ_by_their_rounding(precision):
    run = DBN.changed({"epochs": 1})
    usual = train(run, load(run)).final["train_loss"]
    other = train(run.changed({"precision": precision}), load(run)).final["train_loss"]
    tolerance = {"float64": 1e-4, "bf16": 0.05}[precision]
    assert 0 < abs(other - usual) < tolerance * usual


def test_a_method_may_act_between_updates(monkeypatch):
    calls = []

    def build():
        return {"after_step": lambda model, inputs, step: calls.append((step, len(inputs)))}

    monkeypatch.setitem(methods.METHODS, "watched", methods.Row("watched", {}, build))
    run = BASE.changed({"method": {"name": "watched"}, "epochs": None, "iterations": 3})
    train(run, load(run))
    assert calls == [(0, 64), (1, 64), (2, 64), (3, 64)]


# --- batches ------------------------------------------------------------------------------------


def test_an_epoch_has_every_example_at_most_once_and_another_order_each_time():
    data = synthetic_dataset("digits", n=70)
    data = replace(data, train_y=torch.arange(70))
    batches = TensorBatches(data, BASE.changed({"batch_size": 16}), CPU)
    first, second = (torch.cat([y for _, y in batches.epoch(epoch)]) for epoch in (0, 1))
    assert batches.steps_per_epoch == 4
    assert len(first) == len(first.unique()) == 64
    assert not torch.equal(first, second)
    rest = torch.cat([y for _, y in batches.epoch(0, start=3)])
    assert torch.equal(rest, first[48:])


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="batch_size=64 is more than the 32 training examples"):
        TensorBatches(synthetic_dataset("digits", n=32), BASE, CPU)


def test_pictures_are_read_from_disk_in_the_same_order_after_a_restart(tmp_path):
    for part, count in (("train", 7), ("val", 2)):
        for name in "ab":
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                colour = (30 * i, 200 if name == "a" else 0, 90)
                Image.new("RGB", (12, 10), colour).save(tmp_path / part / name / f"{i}.png")
    dataset = Pictures(
        "tree",
        load_imagefolder(tmp_path, "train", 8, train=True, seed=3),
        load_imagefolder(tmp_path, "val", 8),
        workers=0,
    )
    run = BASE.changed({"batch_size": 4, "seed": 3})
    batches = list(FolderBatches(dataset, run, CPU).epoch(1))
    assert [len(x) for x, _ in batches] == [4, 4, 4]
    (x, y), *_ = FolderBatches(dataset, run, CPU).epoch(1, start=2)
    assert torch.equal(x, batches[2][0])
    assert torch.equal(y, batches[2][1])
    outcome = train(run.changed({"epochs": 2, "subset": {}}), dataset)
    assert outcome.status == "finished"
    assert len(outcome.history["test_error"]) == 2


# --- the curve ----------------------------------------------------------------------------------


def test_a_full_batch_has_its_exact_loss_at_each_point():
    run = BASE.changed({"batch_size": None, "epochs": None, "iterations": 7, "evaluate_every": 3})
    outcome = train(run, load(run))
    every = train(run.changed({"evaluate_every": 1}), load(run))
    assert outcome.history["iteration"] == [1, 3, 6, 7]
    exact = dict(zip(every.history["iteration"], every.history["train_loss"], strict=True))
    assert outcome.history["train_loss"] == [exact[i] for i in (1, 3, 6, 7)]


def test_top_5_errors_count_the_five_best():
    run = BASE.changed({"dataset": {"name": "yaleb"}, "subset": {}, "epochs": 1, "batch_size": 8})
    final = train(run, synthesise(run, 64)).final
    assert 0 < final["test_top5_error"] < final["test_error"] <= 100


def test_divergence_is_an_outcome_not_a_crash():
    run = BASE.changed({"optimiser.lr": 1e20})
    outcome = train(run, load(run))
    assert outcome.status == "diverged"
    assert outcome.reason.startswith("the loss was no number at update")
    assert outcome.final.get("train_loss") is None
    assert outcome.final["iterations"] < 32
    record = Record(run, "tiny", "small", outcome.status, outcome.final, outcome.history)
    json.loads(record.to_json(), parse_constant=pytest.fail)


def test_probes_are_taken_on_the_way_and_change_nothing():
    run = DBN.changed({"epochs": 2})
    probes = {
        "fisher": {"every": 5, "samples": 300},
        "jacobian": {"every": 16, "samples": 8},
        "activations": {"every": 8, "samples": 200},
    }
    plain, probed = (train(r, load(run)) for r in (run, run.changed({"probes": probes})))
    assert without_times(probed)[:3] == without_times(plain)[:3]
    assert probed.probes["fisher"]["iteration"] == [0, 5, 10, 15, 16]
    assert min(probed.probes["fisher"]["at_90_percent"]) > 1
    assert probed.probes["jacobian"]["iteration"] == [0, 16]
    assert all(c < 0.2 for c in probed.probes["activations"]["correlation"])


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


def test_time_stands_still_while_others_work(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("whitenorm.lab.training.trainer.time.perf_counter", lambda: now[0])
    trainer = Trainer(BASE.changed({"epochs": 2}), load(BASE), CPU)
    update, evaluate = trainer._update, trainer.evaluate

    def slow_update(x, y):
        now[0] += 1.0
        update(x, y)

    def slow_evaluation():
        now[0] += 100.0
        return evaluate()

    monkeypatch.setattr(trainer, "_update", slow_update)
    monkeypatch.setattr(trainer, "evaluate", slow_evaluation)
    for _ in trainer.updates():
        now[0] += 1000.0
    assert trainer.history["seconds"] == [8.0, 16.0]
    assert trainer.outcome().final["seconds_per_iteration"] == 1.0


# --- the same again -----------------------------------------------------------------------------


def test_the_seed_decides_everything():
    first = train(PICTURES, pictures())
    torch.manual_seed(123)
    before = torch.get_rng_state()
    second = train(PICTURES, pictures())
    assert torch.equal(torch.get_rng_state(), before)  # the caller's random numbers are its own
    assert without_times(first) == without_times(second)
    other = train(PICTURES.changed({"seed": 1}), pictures())
    assert other.history["train_loss"] != first.history["train_loss"]


def test_methods_start_from_the_same_weights():
    runs = [BASE.changed({"method": {"name": name}}) for name in ("plain", "bn", "dbn")]
    states = [Trainer(run, load(run), CPU).model.state_dict() for run in runs]
    for state in states[1:]:
        for key in states[0]:
            assert torch.equal(state[key], states[0][key])


@pytest.mark.parametrize("updates", [1, 4, 7])
def test_an_interrupted_training_ends_as_if_it_had_not_been(tmp_path, updates):
    """Within an epoch, at its end, between points: bit for bit."""
    straight = Checkpoint(tmp_path / "straight.pt", final=True)
    expected = train(PICTURES, pictures(), checkpoint=straight)
    checkpoint = Checkpoint(tmp_path / "resumed.pt", final=True)
    seen = []
    with pytest.raises(Interrupted, match=f"stopped after {updates} of 12 updates"):
        train(
            PICTURES,
            pictures(),
            checkpoint=checkpoint,
            watch=lambda progress: seen.append(progress.iteration),
            stop=lambda: len(seen) == updates,
        )
    torch.rand(3)
    outcome = train(
        PICTURES,
        pictures(),
        checkpoint=checkpoint,
        watch=lambda progress: seen.append(progress.iteration),
    )
    assert seen == list(range(1, 13))
    assert without_times(outcome) == without_times(expected)
    states = [c.load(PICTURES, CPU) for c in (straight, checkpoint)]
    assert_same(states[0]["model"], states[1]["model"])
    assert_same(states[0]["optimiser"], states[1]["optimiser"])
    assert_same(states[0]["replicas"], states[1]["replicas"])  # random states


# --- checkpoints --------------------------------------------------------------------------------


def saved(path):
    checkpoint = Checkpoint(path)
    checkpoint.save(BASE, Trainer(BASE, load(BASE), CPU).state_dict())
    return checkpoint


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    saved(tmp_path / "c.pt")
    with pytest.raises(
        CheckpointError, match=r"c.pt is of another run: its method is .*plain.*, not .*dbn"
    ):
        train(DBN, load(DBN), checkpoint=Checkpoint(tmp_path / "c.pt"))


def test_a_broken_checkpoint_is_refused(tmp_path):
    checkpoint = saved(tmp_path / "c.pt")
    whole = checkpoint.path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"not a checkpoint"):
        checkpoint.path.write_bytes(broken)
        with pytest.raises(CheckpointError, match=r"c.pt isn't a whole checkpoint"):
            checkpoint.load(BASE, CPU)


def test_a_checkpoint_is_data_not_code(tmp_path):
    """A pickle that would run something when loaded is refused."""

    class Malice:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "pwned"),))

    torch.save({"format": 1, "run": BASE.settings(), "model": Malice()}, tmp_path / "c.pt")
    with pytest.raises(CheckpointError):
        Checkpoint(tmp_path / "c.pt").load(BASE, CPU)
    assert not (tmp_path / "pwned").exists()


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    checkpoint = saved(tmp_path / "c.pt")
    before = checkpoint.path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("whitenorm.lab.training.checkpoints.os.fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left on device; the checkpoint before"):
        checkpoint.save(BASE, {"iteration": 99})
    assert checkpoint.path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [checkpoint.path]
