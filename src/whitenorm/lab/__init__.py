"""The laboratory: every figure and table of the paper as a command.

A study's way is one lap, package after package:

- :mod:`~whitenorm.lab.studies`: what to run, as data, and how records judge the paper's claims
- :mod:`~whitenorm.lab.execution`: which runs are left to do, and where they are done
- :mod:`~whitenorm.lab.training`: one run, on :mod:`~whitenorm.lab.data`, of one of the
  :mod:`~whitenorm.lab.networks`
- :mod:`~whitenorm.lab.records`: what came of it, one line a run
- :mod:`~whitenorm.lab.reporting`: figures, tables and pages, from records alone

:mod:`~whitenorm.lab.bench` measures speed and memory; :mod:`~whitenorm.lab.cli` is the command.
"""
