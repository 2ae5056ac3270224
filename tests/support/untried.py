"""A plugin of the ranks for tests on GPUs: what is written and was never run there may be asked for."""

from engine.recipe import limits

limits.SUPPORTED["sharding"] = (*limits.SUPPORTED["sharding"], "pipeline")
limits.SUPPORTED["cpu_offload"] = (False, True)
