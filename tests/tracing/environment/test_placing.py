"""Scripts that stay on the CPU, traced as moved to the card."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.trace_job import PLACED, ScriptJob
from vramcast.errors import InvalidSpec
from vramcast.tracing.environment.placing import placed
from vramcast.tracing.run import answered_script
from vramcast.tracing.session import Session


class Tagger(nn.Module):
    """Makes tensors of its own on the way, as scripts for the CPU do."""

    def __init__(self):
        super().__init__()
        self.embedding, self.rows, self.head = nn.Embedding(50, 64), nn.LSTM(64, 64, batch_first=True), nn.Linear(64, 9)

    def forward(self, words, lengths):
        place = next(self.parameters()).device if self.says_where else None
        state = torch.zeros(1, len(words), 64, device=place), torch.zeros(1, len(words), 64, device=place)
        packed = pack_padded_sequence(self.embedding(words), lengths, batch_first=True)
        found, _ = pad_packed_sequence(self.rows(packed, state)[0], batch_first=True)
        kept = torch.zeros(found.shape, device=place)
        kept[:, 1:] = found[:, 1:]
        return self.head(kept.masked_fill(torch.ones(64, device=place) == 0, -1e9))


def trained(move):
    """Steps of it, whose tensors are moved as told."""
    model = Tagger()
    model.says_where = move(torch.ones(1)).is_cuda
    model = move(model)
    words, lengths, tags = move(torch.randint(50, (8, 16))), torch.full((8,), 16), move(torch.randint(9, (8, 16)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words, lengths).flatten(0, 1), tags.view(-1))
        loss.backward()
        optimizer.step()
    assert loss.detach().numpy().shape == () if not model.says_where else True
    return words, tags


def test_a_network_of_the_cpu_takes_what_it_takes_once_its_author_moves_it():
    peaks = []
    for is_moved in (True, False):
        session = Session(load_gpu("t4"))
        with session.active():
            if is_moved:
                trained(lambda what: what.to("cuda"))
            else:
                with placed(session.simulation):
                    trained(lambda what: what)
        peaks.append(session.device.allocator.peak_allocated_bytes)
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01) and peaks[0] > 0


def test_what_meets_the_card_stays_there_and_what_does_not_stays_on_the_host(running):
    with placed(running.simulation):
        model, met, other = nn.Linear(4, 4), torch.ones(2, 4), torch.ones(2, 4)
        part = torch.ones(4, 4)[:2]
        (model(met) + part).sum().backward()
        assert met.is_cuda and model.weight.grad.is_cuda
        assert not other.is_cuda and not part.is_cuda


CPU = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    torch.nn.functional.mse_loss(model(torch.ones(2, 8)), torch.ones(2, 8)).backward()
    optimizer.step()
"""


@pytest.mark.usefixtures("forked")
def test_a_script_for_the_cpu_is_answered_for_the_card_unless_its_arguments_say_cpu(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(CPU)
    job = ScriptJob(path=str(script), gpu=load_gpu("t4"), is_sandboxed=True)
    found = answered_script(job).answer
    assert found.steps == 3 and PLACED in found.assumptions and found.peak.allocated_bytes
    with pytest.raises(InvalidSpec, match="computes on the CPU alone"):
        answered_script(ScriptJob(path=str(script), gpu=load_gpu("t4"), arguments=("--device=cpu",)))
