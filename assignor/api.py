"""KIP-924 in Python: the interface for assignors of third parties.

A plug-in subclasses `TaskAssignor`, answers an `ApplicationState` with a `TaskAssignment`, and is
registered under the entry point group ``muster.assignors`` or named as ``module:Class``:

    class Mine(TaskAssignor):
        def assign(self, state):
            assignment = identity_assignment(state)
            ...
            return TaskAssignment.of(assignment.values())

Names are those of the KIP in Python spelling; a process id is a member id. A plug-in that raises,
hangs or gives an invalid answer does not harm its group (`muster.plugins`).
"""

from muster.assignor.kip924.adapted_plugin import Adapted, TaskAssignor
from muster.assignor.kip924.application_state import (
    LATEST_OFFSET,
    ApplicationState,
    AssignmentConfigs,
    KafkaStreamsState,
    TaskInfo,
    TaskTopicPartition,
)
from muster.assignor.kip924.assignment_utilities import (
    RackAwareOptimizationParams,
    default_standby_task_assignment,
    identity_assignment,
    optimize_rack_aware_active_tasks,
    optimize_rack_aware_standby_tasks,
    validate_task_assignment,
)
from muster.assignor.kip924.plugin_answer import (
    AssignedTask,
    AssignmentError,
    KafkaStreamsAssignment,
    TaskAssignment,
    TaskAssignmentException,
    TaskType,
)
from muster.assignor.solvers.graph import Edge, Graph, InvalidGraph
from muster.protocol.ids import Task, parse_task
from muster.protocol.settings import Settings

__all__ = [
    "LATEST_OFFSET",
    "Adapted",
    "ApplicationState",
    "AssignedTask",
    "AssignmentConfigs",
    "AssignmentError",
    "Edge",
    "Graph",
    "InvalidGraph",
    "KafkaStreamsAssignment",
    "KafkaStreamsState",
    "RackAwareOptimizationParams",
    "Settings",
    "Task",
    "TaskAssignment",
    "TaskAssignmentException",
    "TaskAssignor",
    "TaskInfo",
    "TaskTopicPartition",
    "TaskType",
    "default_standby_task_assignment",
    "identity_assignment",
    "optimize_rack_aware_active_tasks",
    "optimize_rack_aware_standby_tasks",
    "parse_task",
    "validate_task_assignment",
]
