"""What a piece of work allocates on a simulated card."""


def allocated(session, prepare):
    """Blocks that the second part of some work takes, beyond what its first part prepared, as (bytes, name)."""
    with session.active():
        run = prepare()
        start = len(session.device.tape.blocks)
        kept = run()
        blocks = session.device.tape.blocks[start:]
        del kept
    assert not session.simulation.unseen
    return [(block.num_bytes, block.name) for block in blocks]
