"""Public name of `stallscope.training.integrations.keras`."""

import sys

from stallscope.training.integrations import keras

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stallscope.training.integrations.keras import StallscopeCallback as StallscopeCallback

sys.modules[__name__] = keras
