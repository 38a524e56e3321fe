"""Public name of `stallscope.training.integrations.pytorch`."""

import sys

from stallscope.training.integrations import pytorch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch import unwatch as unwatch
    from stallscope.training.integrations.pytorch import watch as watch

sys.modules[__name__] = pytorch
