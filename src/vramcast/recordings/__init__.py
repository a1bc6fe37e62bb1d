"""Recordings of a process's memory, played through the simulated allocator: as they went, and as they could have."""
