"""Public name of `stallscope.training.integrations.accelerate`."""

import sys

from stallscope.training.integrations import accelerate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stallscope.training.integrations.accelerate import StallscopeTracker as StallscopeTracker

sys.modules[__name__] = accelerate
