"""The local engine: continuous batching in this process, on the modules that are trained."""

from turnwise.inference.local.engine import LocalEngine as LocalEngine
from turnwise.models.probing import UnsupportedModel as UnsupportedModel
