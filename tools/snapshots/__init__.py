"""Snapshots of the names that the configuration files of other tools may hold: `python -m tools.snapshots [FORMAT]`.

Run it in an environment that holds the packages; what is too heavy to install, or is no Python package, is read from
an unpacked wheel or a checkout: `--source vllm=DIRECTORY`. Without either the snapshot stays as it is and is named.
With --check nothing is written, and a difference is an error: that is how drift shows.
"""
