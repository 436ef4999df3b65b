"""Configurations: what a run is asked to do.

They are read from TOML in layers, and every problem is reported at once.
"""

from fairmargin.config.errors import ConfigError, Problem
from fairmargin.config.loading import (
    difference,
    dump,
    extended,
    load,
    load_resolved,
    override,
    parse_resolved,
    presets,
    settings_of,
)
from fairmargin.config.naming import dataset_name
from fairmargin.config.schema import Config, DataConfig, Key, MethodConfig, NetworkConfig, all_keys

__all__ = [
    "Config",
    "ConfigError",
    "DataConfig",
    "Key",
    "MethodConfig",
    "NetworkConfig",
    "Problem",
    "all_keys",
    "dataset_name",
    "difference",
    "dump",
    "extended",
    "load",
    "load_resolved",
    "override",
    "parse_resolved",
    "presets",
    "settings_of",
]
