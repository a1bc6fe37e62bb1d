#!/bin/bash
# Megatron-LM, one machine of eight cards
TP=${TP:-4}
GPT_ARGS="
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear \
    --position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 128256 \
    --attention-dropout 0 --hidden-dropout 0 \
    --seq-length 8192 --max-position-embeddings 8192
"
TRAIN_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --bf16 --lr 3e-4   # and what else a run needs
)
torchrun --nproc_per_node 8 pretrain_gpt.py $GPT_ARGS "${TRAIN_ARGS[@]}" \
    --tensor-model-parallel-size $TP --sequence-parallel --use-distributed-optimizer --data-path "$DATA"
