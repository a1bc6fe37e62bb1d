"""hf-mem on a question of benchmarks/serve.py: prints weights and what they leave of the fraction [GiB].

It reads headers from the hub and knows no card, activations or pool: its cache is what the fraction leaves.
"""

import json
import subprocess
import sys
from pathlib import Path

question = json.loads(sys.argv[1])
program = str(Path(sys.executable).with_name("hf-mem"))
done = subprocess.run(
    [program, "--model-id", question["hub"], "--json-output"], capture_output=True, text=True, timeout=120, check=False
)
if done.returncode:
    sys.exit(done.stderr.strip().splitlines()[-1])
answer = json.loads(done.stdout)
weights = (answer.get("memory") or answer["total_memory"]) / 2**30
print(weights / question["tp"], question["fraction"] * question["visible_gib"] - weights / question["tp"])
