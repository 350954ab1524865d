r"""The studies: one table, a row for each figure and table of the paper and for what lies beyond.

At scale "paper" the settings are those of the paper's text, and where it is silent those of the
authors' published scripts. At scale "small" the same question is asked of less, in minutes. What a
row is made of is in :mod:`whitenorm.lab.studies.study`; to add a study is to add a row.
"""

from whitenorm.lab.lookup import look_up
from whitenorm.lab.studies.convnets import FIG6, FIG7
from whitenorm.lab.studies.demo import DEMO
from whitenorm.lab.studies.faces import FACTORS, FIG4, FIG5
from whitenorm.lab.studies.family import BATCH2, COLLAPSE, PATCHES
from whitenorm.lab.studies.noise import SND
from whitenorm.lab.studies.perceptrons import FIG2, FIG3
from whitenorm.lab.studies.remarks import ISOMETRY, RUNNING
from whitenorm.lab.studies.residual import BUDGET, TABLE1, TABLE2, TABLE3
from whitenorm.lab.studies.robustness import RANK, SHRINKAGE
from whitenorm.lab.studies.study import Study

_FIGURES = (FIG2, FIG3, FIG4, FIG5, FIG6, FIG7)
_TABLES = (TABLE1, TABLE2, TABLE3)
_FAMILY = (BATCH2, PATCHES, COLLAPSE, SND)
_OTHERS = (ISOMETRY, RUNNING, FACTORS, BUDGET, RANK, SHRINKAGE, *_FAMILY, DEMO)
STUDIES = {study.name: study for study in (*_FIGURES, *_TABLES, *_OTHERS)}


def find_study(name: str) -> Study:
    """The study of that name."""
    return look_up(STUDIES, "study", name)
