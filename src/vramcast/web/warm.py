"""Imports what questions need, so that processes forked from here answer their first one at once."""

import gc

import vramcast.api
import vramcast.estimate.serving
import vramcast.estimate.training
import vramcast.formats.write
import vramcast.search.serving
import vramcast.web.routes.catalogue
import vramcast.web.routes.reports  # noqa: F401
from vramcast.estimate.timeline import LOOP
from vramcast.web.service import answered

LOOP.load()
answered("GET", "/api/models", "query=", {}, b"")  # what every page asks first
gc.collect()
gc.freeze()  # no collection of a process looks through all this again
