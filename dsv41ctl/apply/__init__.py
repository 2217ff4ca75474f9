"""Runs plans: hosts in parallel, read back after every change, journaled, undone when they fail."""

from dsv41ctl.apply.engine import Transaction, transaction
from dsv41ctl.apply.extension import prebuild
from dsv41ctl.apply.journal import Journal, JournalHeader, list_journals, read_journal, state_directory
from dsv41ctl.apply.observe import (
    ClusterStatus,
    NodeStatus,
    ServerState,
    cluster_state,
    healthy,
    observe_node,
    server_status,
    status,
)
from dsv41ctl.apply.outcome import Outcome, StepResult
from dsv41ctl.apply.serve import start, stop
from dsv41ctl.apply.server_build import server_build
from dsv41ctl.apply.server_run import server_logs, server_start, server_stop
from dsv41ctl.apply.session import Session, open_session
from dsv41ctl.apply.staging import stage

__all__ = [
    "ClusterStatus",
    "Journal",
    "JournalHeader",
    "NodeStatus",
    "Outcome",
    "ServerState",
    "Session",
    "StepResult",
    "Transaction",
    "cluster_state",
    "healthy",
    "list_journals",
    "observe_node",
    "open_session",
    "prebuild",
    "read_journal",
    "server_build",
    "server_logs",
    "server_start",
    "server_status",
    "server_stop",
    "stage",
    "start",
    "state_directory",
    "status",
    "stop",
    "transaction",
]
