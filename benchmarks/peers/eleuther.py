"""EleutherAI's calc_transformer_mem.py on the question of benchmarks/train.py; prints GiB."""

import re
import subprocess
import sys

arguments = "--num-gpus 8 -tp 2 -z 1 -b 1 -s 4096 -v 128256 -hs 8192 -a 64 -l 12 -ff 3.5 -nl 3 -kv 0.125"
done = subprocess.run(
    [sys.executable, f"{sys.argv[1]}/calc_transformer_mem.py", *arguments.split()],
    capture_output=True, text=True, check=True,
)
found = re.search(r"Per-GPU Memory Required for Training: ([\d.]+) GiB", done.stdout)
assert found, done.stdout
print(found[1])
