"""Public name of `stallscope.model.analysis`: `frames` and `pieces` return a run as pandas data frames."""

import sys

from stallscope.model import analysis

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stallscope.model.analysis import Frames as Frames
    from stallscope.model.analysis import frames as frames
    from stallscope.model.analysis import pieces as pieces

sys.modules[__name__] = analysis
