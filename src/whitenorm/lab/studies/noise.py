r"""Studies of the noise that a batch brings into what it normalizes."""

from collections.abc import Sequence

from whitenorm.lab.records.run import Run, Settings
from whitenorm.lab.studies.claims import Judge, final, lower, together
from whitenorm.lab.studies.settings import BN, mlp
from whitenorm.lab.studies.study import BEYOND, Claim, Panel, Panels, Scale, Study, View

_WHITENINGS: dict[str, Settings] = {
    "PCA": {"name": "dbn-pca"},
    "ZCA": {"name": "dbn"},
    "Cholesky": {"name": "dbn", "whitening": "cholesky"},
    "Newton-Schulz": {"name": "dbn", "whitening": "newton"},
}
_GROUPS = ("groups of 4", "groups of 16", "whole layer")


def _disturbances(run: Run) -> Panels:
    """Of each group size with all whitenings, and of each whitening with all group sizes."""
    sizes = dict(zip(_GROUPS, (4, 16, None), strict=True))

    def panel(name: str, methods: dict[str, Settings]) -> Panel:
        return Panel.of_methods(name, run.changed({"task": "disturbance"}), {"BN": BN, **methods})

    by_group = [
        panel(name, {label: {**w, "group_size": size} for label, w in _WHITENINGS.items()})
        for name, size in sizes.items()
    ]
    by_whitening = [
        panel(label, {name: {**w, "group_size": size} for name, size in sizes.items()})
        for label, w in _WHITENINGS.items()
    ]
    return (*by_group, *by_whitening)


def _less_noisy(pairs: Sequence[tuple[str, str]]) -> Judge:
    """In the smallest batches and in the largest."""
    return together(*(lower(final(metric), pairs) for metric in ("snd_small", "snd_large")))


_RISING = tuple(zip(("BN", *_GROUPS), _GROUPS, strict=False))
_BOTH = "in the smallest batches and in the largest"
SND = Study(
    name="snd",
    title="The noise of batches, by whitening, group size and batch size",
    reference=BEYOND,
    question="How much does a sample's output depend on the batch that it happens to be in?",
    scales={
        "small": Scale(
            _disturbances(
                Run({"name": "digits"}, mlp([32]), BN, iterations=20, batch_size=512),
            ),
            duration="1 min on 2 cores",
            reduced="32 neurons that see digits, instead of 64 that see MNIST, and 3 instead of 5 "
            "seeds",
        ),
        "paper": Scale(
            _disturbances(
                Run(
                    {"name": "mnist"},
                    mlp([64]),
                    BN,
                    iterations=20,
                    batch_size=1024,
                    subset={"train": 8192},
                ),
            ),
            duration="5 min on 2 cores",
            seeds=5,
        ),
    },
    views=(
        View(
            "batches",
            "Stochastic normalization disturbance by batch size",
            x="batch_size",
            y=("snd",),
            log="xy",
        ),
    ),
    claims=(
        Claim(
            "The larger the groups, the noisier is their whitening.",
            "with each whitening SND is lower with BN than in groups of 4, in groups of 4 than of "
            f"16, and in groups of 16 than over the whole layer, {_BOTH}",
            _less_noisy(_RISING),
        ),
        Claim(
            "PCA is the noisiest whitening.",
            "at each group size SND is lower with ZCA, Cholesky and Newton-Schulz than with PCA, "
            + _BOTH,
            _less_noisy([(label, "PCA") for label in _WHITENINGS if label != "PCA"]),
        ),
        Claim(
            "ZCA is less noisy than Cholesky.",
            f"at each group size SND is lower with ZCA than with Cholesky, {_BOTH}",
            _less_noisy([("ZCA", "Cholesky")]),
        ),
        Claim(
            "Newton-Schulz is less noisy than the ZCA that it approaches.",
            f"at each group size SND is lower with five steps of Newton-Schulz than with ZCA, "
            f"{_BOTH}",
            _less_noisy([("Newton-Schulz", "ZCA")]),
        ),
    ),
    metrics=("snd_small", "snd_large"),
    notes=(
        "SND is that of Huang et al. (CVPR 2019 and 2020): the mean distance of a sample's output "
        "from its own mean over random batches that contain it, here 20 of each sample. It is "
        "measured of the first hidden layer as it is initialized, without shrinkage, with eps "
        "1e-5; nothing is trained. The smallest batches have two samples for each neuron.",
        "Runs of one seed have the same weights and the same batches.",
    ),
)
