"""Tables pasted beside a failure give one statement a device."""

from tests.sources.failures.samples import MIB
from vramcast.sources.failures import FAMILIES, read_failures

SMI = """
Thu Jan  1 10:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.65.06              Driver Version: 580.65.06      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| N/A   30C    P0             72W /  700W |   70123MiB /  81559MiB |     99%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA GeForce RTX 4090        Off |   00000000:3B:00.0  On |                  Off |
|  0%   30C    P8             20W /  450W |       4MiB /  24564MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A            1234      C   python train.py                       60000MiB |
|    0   N/A  N/A            5678      C   /usr/bin/python3                      10000MiB |
+-----------------------------------------------------------------------------------------+
"""

OLD = """
| NVIDIA-SMI 470.82.01    Driver Version: 470.82.01    CUDA Version: 11.4     |
|   0  Tesla V100-SXM2...  On   | 00000000:00:1E.0 Off |                    0 |
| N/A   37C    P0    25W / 300W |   1500MiB / 16160MiB |      0%      Default |
| Processes:
|    0      4321      C   python                              1490MiB |
"""

MIG = """
| NVIDIA-SMI 535.104.05             Driver Version: 535.104.05   CUDA Version: 12.2     |
|   0  NVIDIA A100-SXM4-40GB          On  | 00000000:01:00.0 Off |                   On |
| N/A   30C    P0              43W / 400W |    45MiB / 40960MiB  |     N/A      Default |
| MIG devices:
| GPU  GI  CI  MIG |                   Memory-Usage |        Vol|      Shared           |
|  0    1   0   0  |              12MiB / 19968MiB  | 42      0 |  3   0    2    0    0 |
"""


def test_older_layouts_and_slices_are_read() -> None:
    (old,) = read_failures(OLD).statements
    assert old.numbers["used_bytes"] == 1500 * MIB and old.numbers["other_processes_bytes"] == 1490 * MIB
    card, part = read_failures(MIG).statements
    assert (card.wording, part.wording, part.numbers["name"]) == ("table", "mig", "MIG 1/0/0")
    assert part.numbers["total_bytes"] == 19968 * MIB


def test_a_query_gives_the_columns_its_header_names() -> None:
    text = (
        "index, name, memory.total [MiB], memory.used [MiB], memory.free [MiB]\n"
        "0, NVIDIA L4, 23034 MiB, 500 MiB, 22534 MiB\n1, NVIDIA L4, 23034 MiB, 0 MiB, 23034 MiB\n"
    )
    cards = read_failures(text).statements
    assert [card.wording for card in cards] == ["query", "query"]
    assert cards[0].numbers == {
        "device": 0,
        "name": "NVIDIA L4",
        "total_bytes": 23034 * MIB,
        "used_bytes": 500 * MIB,
        "free_bytes": 22534 * MIB,
    }
    assert cards[1].numbers["used_bytes"] == 0


def test_tables_support_and_are_no_failures() -> None:
    assert {FAMILIES[name].about for name in ("nvidia-smi", "npu-smi", "rocm-smi", "memory-summary")} == {"support"}
