from tests.scenarios.case import Case
from tests.scenarios.machines import HGX
from tests.scenarios.story import From, Host, Run, Story, Work

CASES = (
    Case(
        name="input_cpu_saturated_node",
        kind="positive",
        subject="run",
        cause="input_cpu_saturated",
        story=Story(
            nodes=(HGX,),
            runs=(
                Run(
                    ranks=tuple((gpu,) for gpu in range(8)),
                    work=(From(-1e9, Work(loader_cores=6)), From(10, Work(data_wait=0.22, loader_cores=22.8))),
                ),
            ),
            hosts=(From(-1e9, Host()), From(10, Host(cores=6, cpu_waiting=0.6))),
        ),
        alerts=frozenset({"TrainingInputCpuSaturated"}),
        lost=0.31,
    ),
)
