"""Where a user's own facts lie: prices that were refreshed."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_folder() -> Path:
    """$VRAMCAST_DATA, else the platform's folder for a program's data. It need not exist."""
    chosen = os.environ.get("VRAMCAST_DATA")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "vramcast"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "vramcast"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "vramcast"
