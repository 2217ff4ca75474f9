"""A against B: capture outputs, compare them by A's own noise floor, and measure speed."""

from dsv41ctl.ab.bench import BenchSettings, run_bench
from dsv41ctl.ab.benchcompare import BenchComparison, compare_bench
from dsv41ctl.ab.benchrun import BenchRun, read_bench, write_bench
from dsv41ctl.ab.capturefile import CaptureFileError, read_capture
from dsv41ctl.ab.capturing import capture
from dsv41ctl.ab.client import ServeError
from dsv41ctl.ab.comparing import compare, compare_captures
from dsv41ctl.ab.comparison import Comparison, comparison_json
from dsv41ctl.ab.report import write_report
from dsv41ctl.ab.settings import CaptureSettings, CaptureSummary, Progress
from dsv41ctl.ab.verdict import Verdict

__all__ = [
    "BenchComparison",
    "BenchRun",
    "BenchSettings",
    "CaptureFileError",
    "CaptureSettings",
    "CaptureSummary",
    "Comparison",
    "Progress",
    "ServeError",
    "Verdict",
    "capture",
    "compare",
    "compare_bench",
    "compare_captures",
    "comparison_json",
    "read_bench",
    "read_capture",
    "run_bench",
    "write_bench",
    "write_report",
]
