"""The laboratory: every figure and table of the paper as a command.

What is run is data: a :class:`~whitenorm.lab.runs.Run` holds the settings of one training, a
:class:`~whitenorm.lab.study.Study` the runs of one figure or table, and the studies are rows of
:data:`~whitenorm.lab.studies.STUDIES`. :func:`~whitenorm.lab.execution.run_study` turns them into
records, :func:`~whitenorm.lab.report.build_report` turns records into figures and a page.
"""
