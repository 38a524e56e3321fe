"""Public name of `stallscope.training.integrations.transformers`."""

import sys

from stallscope.training.integrations import transformers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stallscope.training.integrations.transformers import StallscopeCallback as StallscopeCallback

sys.modules[__name__] = transformers
