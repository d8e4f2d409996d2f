"""Runs Python code that a model wrote, in a sandbox."""

from turnwise.tools.python_code.runner import CodeLimits, CodeRun, run_code, why_not_isolated
from turnwise.tools.python_code.tool import PythonCodeTool

__all__ = ["CodeLimits", "CodeRun", "PythonCodeTool", "run_code", "why_not_isolated"]
