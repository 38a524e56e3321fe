"""Public name of `stallscope.training.integrations.lightning`."""

import sys

from stallscope.training.integrations import lightning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stallscope.training.integrations.lightning import StallscopeCallback as StallscopeCallback

sys.modules[__name__] = lightning
