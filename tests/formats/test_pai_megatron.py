"""Scripts of Pai-Megatron-Patch: branches decided by the size of the model, tokenizers that say the vocabulary."""

from pathlib import Path

import pytest

from vramcast.api import job_of
from vramcast.domain.job import Job
from vramcast.domain.model import MoE
from vramcast.formats.read import read_files
from vramcast.formats.reading import Given

SCRIPT = """#!/bin/bash
set -e
ENV=dsw
MODEL_SIZE=7B
if [ $ENV = dsw ]; then
    GPUS_PER_NODE=`python -c "import torch; print(torch.cuda.device_count())"`
fi
BATCH_SIZE=2
SEQ_LEN=4096
PAD_LEN=4096
TP=4
AC=full
OPTIMIZER_OFFLOAD=false
SFT=true
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes 1"
if [ $MODEL_SIZE = 0.5B ]; then
NUM_LAYERS=24
HIDDEN_SIZE=896
elif [ $MODEL_SIZE = 7B ]; then
NUM_LAYERS=28
HIDDEN_SIZE=3584
NUM_ATTN_HEADS=28
INTERMEDIATE_SIZE=18944
EXTRA_VOCAB_SIZE=421
gqa_options=" \\
            --group-query-attention \\
            --num-query-groups 4"
tie_option=" --untie-embeddings-and-output-weights"
fi
export NVTE_FLASH_ATTN=1 NVTE_FUSED_ATTN=0
TP_COMM_OVERLAP=$(( ($TP > 1) ? 1 : 0 ))
comm_overlap_option="--overlap-grad-reduce"
if [ $TP_COMM_OVERLAP -eq 1 ]; then
    comm_overlap_option="--tp-comm-overlap --overlap-grad-reduce"
fi
if [ $AC = full ]; then
    activation_checkpoint_options=" \\
        --recompute-method uniform --recompute-num-layers 1 --recompute-granularity full"
fi
if [ $OPTIMIZER_OFFLOAD != false ]; then
    offload_option=" --optimizer hybridadam"
fi
if [ $SFT = true ]; then
    sft_option=" --eod-mask-loss --train-mode finetune"
fi
megatron_options="  \\
        --save ${OUTPUT} --lr 1e-5 --attention-dropout 0.0 --hidden-dropout 0.0 \\
        --micro-batch-size ${BATCH_SIZE} --global-batch-size 16 --num-layers ${NUM_LAYERS} \\
        --hidden-size ${HIDDEN_SIZE} --num-attention-heads ${NUM_ATTN_HEADS} --ffn-hidden-size ${INTERMEDIATE_SIZE} \\
        --seq-length ${SEQ_LEN} --max-position-embeddings 131072 --max-padding-length ${PAD_LEN} \\
        --tensor-model-parallel-size ${TP} --extra-vocab-size ${EXTRA_VOCAB_SIZE} \\
        --patch-tokenizer-type Qwen2Tokenizer \\
        --dataset JSON-SFT --swiglu --normalization RMSNorm --use-rotary-position-embeddings \\
        --position-embedding-type rope --disable-bias-linear --add-qkv-bias --bf16 --use-distributed-optimizer \\
        --sequence-parallel "
run_cmd="torchrun $DISTRIBUTED_ARGS ../qwen2/pretrain_qwen2_moe.py
 ${megatron_options} ${activation_checkpoint_options} ${gqa_options} ${offload_option} ${comm_overlap_option} \\
 ${sft_option} ${tie_option}"

echo ${run_cmd}
eval ${run_cmd}
"""


def read(tmp_path: Path, text: str = SCRIPT) -> Given:
    path = tmp_path / "run_mcore_qwen.sh"
    path.write_text(text, encoding="utf-8")
    return read_files([path], command="train")


def job(tmp_path: Path, text: str = SCRIPT) -> Job:
    given = read(tmp_path, text)
    assert [one.name for _, one in given.unread] == []
    return job_of({"from": (tmp_path / "run_mcore_qwen.sh",), "gpus": "8xh100-sxm-80gb"})


def test_a_size_that_no_branch_knows_is_asked_for(tmp_path: Path) -> None:
    given = read(tmp_path, SCRIPT.replace("MODEL_SIZE=7B", "MODEL_SIZE=$2"))
    said = {one.name: one.why for _, one in given.unread}
    assert said["--num-layers"] == "$MODEL_SIZE decides; give --env MODEL_SIZE=... or --args"
    assert "offload_option" not in str(said)


@pytest.mark.parametrize(("old", "new", "name"), [
    ("PAD_LEN=4096", "PAD_LEN=1024", "--max-padding-length"),
    ("Qwen2Tokenizer", "Qwen2VLTokenizer", "--patch-tokenizer-type Qwen2VLTokenizer"),
    ("Qwen2Tokenizer", "FalconTokenizer", "--patch-tokenizer-type"),
    ("pretrain_qwen2_moe.py", "pretrain_megatron_qwen.py", "pretrain_megatron_qwen.py"),
    ("--dataset JSON-SFT", "--dataset MMAP --sliding-window 2048", "--sliding-window"),
    ("OPTIMIZER_OFFLOAD=false", "OPTIMIZER_OFFLOAD=static", "--optimizer"),
    ("--dataset JSON-SFT", "--dataset MMAP --qk-nope-head-dim 192", "--qk-nope-head-dim"),
    ("--bf16 ", "--bf16 --moe-layer-recompute ", "--moe-layer-recompute"),
])
def test_what_makes_another_run_of_it_is_named(tmp_path: Path, old: str, new: str, name: str) -> None:
    assert old in SCRIPT
    assert name in [one.name for _, one in read(tmp_path, SCRIPT.replace(old, new)).unread]


def test_the_patchs_deepseek_v2_has_so_many_dense_layers(tmp_path: Path) -> None:
    more = """--num-experts 64 --moe-ffn-hidden-size 1408 --moe-router-topk 6 --moe-layer-freq 1 --bf16 """
    text = SCRIPT.replace("Qwen2Tokenizer", "DeepSeekV2Tokenizer").replace("VOCAB_SIZE=421", "VOCAB_SIZE=2400")
    layers = job(tmp_path, text.replace("--bf16 ", more)).model.main.layers
    assert [isinstance(layer.channel, MoE) for layer in layers] == [False, *[True] * 27]
