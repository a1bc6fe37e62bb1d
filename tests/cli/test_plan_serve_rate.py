"""Deployments for a rate and a promise, from the command line."""

import json

from click.testing import CliRunner

from vramcast.cli.main import group


def test_a_loose_promise_is_kept_by_replicas_whose_queue_does_not_grow() -> None:
    asked = ["plan", "serve", "llama-3.1-8b", "--on", "l40s", "--input-len", "512", "--output-len", "128",
             "--rate", "60", "--slo", "ttft<5s,tpot<100ms", "--num-requests", "1000", "--json"]
    result = CliRunner().invoke(group, asked, prog_name="vramcast", catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert '"slo_share"' in json.dumps(json.loads(result.output))
