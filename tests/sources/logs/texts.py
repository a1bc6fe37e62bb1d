"""Logs as the engines word them, with our own numbers."""

VLLM_V1 = """\
(APIServer pid=11) INFO 10-06 12:00:01 [api_server.py:1971] vLLM API server version 0.19.1
(APIServer pid=11) INFO 10-06 12:00:01 [utils.py:233] non-default args: {'model_tag': 'meta-llama/Llama-3.1-8B-Instruct', \
'model': 'meta-llama/Llama-3.1-8B-Instruct', 'max_model_len': 8192, 'tensor_parallel_size': 2, \
'gpu_memory_utilization': 0.92, 'max_num_seqs': 512}
(APIServer pid=11) INFO 10-06 12:00:02 [scheduler.py:216] Chunked prefill is enabled with max_num_batched_tokens=8192.
(EngineCore_DP0 pid=99) INFO 10-06 12:00:09 [core.py:77] Initializing a V1 LLM engine (v0.19.1) with config: \
model='meta-llama/Llama-3.1-8B-Instruct', speculative_config=None, tokenizer='meta-llama/Llama-3.1-8B-Instruct', \
dtype=torch.bfloat16, max_seq_len=8192, load_format=auto, tensor_parallel_size=2, pipeline_parallel_size=1, \
data_parallel_size=1, disable_custom_all_reduce=False, quantization=None, enforce_eager=False, kv_cache_dtype=auto, \
device_config=cuda, enable_prefix_caching=True, compilation_config={'level': 3, 'max_model_len': 7}
\x1b[1;36m(Worker_TP0 pid=101)\x1b[0;0m INFO 10-06 12:00:31 [gpu_model_runner.py:4370] Model loading took 7.51 GiB \
memory and 5.310001 seconds
\x1b[1;36m(Worker_TP1 pid=102)\x1b[0;0m INFO 10-06 12:00:31 [gpu_model_runner.py:4370] Model loading took 7.51 GiB \
memory and 5.420001 seconds
(Worker_TP0 pid=101) INFO 10-06 12:00:52 [gpu_model_runner.py:6376] Estimated CUDA graph memory: 0.55 GiB total
(Worker_TP0 pid=101) INFO 10-06 12:00:52 [gpu_worker.py:436] Available KV cache memory: 61.02 GiB
(Worker_TP1 pid=102) INFO 10-06 12:00:52 [gpu_worker.py:436] Available KV cache memory: 61.00 GiB
(EngineCore_DP0 pid=99) INFO 10-06 12:00:52 [kv_cache_utils.py:1314] GPU KV cache size: 999,424 tokens
(EngineCore_DP0 pid=99) INFO 10-06 12:00:52 [kv_cache_utils.py:1319] Maximum concurrency for 8,192 tokens per request: \
122.00x
(Worker_TP0 pid=101) INFO 10-06 12:01:02 [gpu_model_runner.py:5246] Graph capturing finished in 9 secs, took 0.66 GiB
(Worker_TP1 pid=102) INFO 10-06 12:01:02 [gpu_worker.py:600] Free memory on device (78.60/79.19 GiB) on startup. Desired \
GPU memory utilization is (0.92, 72.85 GiB). Actual usage is 7.51 GiB for weight, 1.01 GiB for peak activation, 2.61 GiB \
for non-torch memory, and 0.66 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with \
`--kv-cache-memory=64000000000` (59.60 GiB) to fit into requested memory, or `--kv-cache-memory=70000000000` (65.19 GiB) \
to fully utilize gpu memory. Current kv cache memory in use is 61.0 GiB.
"""

VLLM_V0 = """\
INFO 11-06 14:55:01 api_server.py:585] vLLM API server version 0.6.6
INFO 11-06 14:55:01 api_server.py:586] args: Namespace(host=None, port=8000, model='Qwen/Qwen2.5-7B-Instruct', dtype='auto', \
max_model_len=4096, tensor_parallel_size=1, pipeline_parallel_size=1, gpu_memory_utilization=0.9, max_num_seqs=256, \
quantization=None, enforce_eager=True, kv_cache_dtype='fp8', enable_lora=False, max_loras=1, max_lora_rank=16)
INFO 11-06 14:55:02 llm_engine.py:234] Initializing an LLM engine (v0.6.6) with config: model='Qwen/Qwen2.5-7B-Instruct', \
speculative_config=None, dtype=torch.float16, max_seq_len=4096, tensor_parallel_size=1, pipeline_parallel_size=1, \
quantization=None, enforce_eager=True, kv_cache_dtype=fp8, block_size=16
INFO 11-06 14:55:15 model_runner.py:1099] Loading model weights took 14.2487 GB
INFO 11-06 14:55:19 worker.py:241] Memory profiling takes 3.99 seconds
INFO 11-06 14:55:19 worker.py:241] the current vLLM instance can use total_gpu_memory (44.42GiB) x \
gpu_memory_utilization (0.90) = 39.98GiB
INFO 11-06 14:55:19 worker.py:241] model weights take 14.25GiB; non_torch_memory takes 0.12GiB; PyTorch activation peak \
memory takes 1.44GiB; the rest of the memory reserved for KV Cache is 24.17GiB.
INFO 11-06 14:55:19 gpu_executor.py:76] # GPU blocks: 56571, # CPU blocks: 9362
INFO 11-06 14:55:19 gpu_executor.py:80] Maximum concurrency for 4096 tokens per request: 220.98x
"""

VLLM_V0_RESULTS = """\
INFO 09-10 10:00:00 llm_engine.py:237] Initializing an LLM engine (v0.6.4.post1) with config: model='microsoft/phi-2', \
dtype=torch.float16, max_seq_len=2048, tensor_parallel_size=1, pipeline_parallel_size=1
INFO 09-10 10:00:09 model_runner.py:1077] Loading model weights took 5.2064 GB
INFO 09-10 10:00:11 worker.py:232] Memory profiling results: total_gpu_memory=14.56GiB initial_memory_usage=5.61GiB \
peak_torch_memory=5.83GiB memory_usage_post_profile=5.66Gib non_torch_memory=0.44GiB kv_cache_size=6.83GiB \
gpu_memory_utilization=0.90
INFO 09-10 10:00:12 gpu_executor.py:113] # GPU blocks: 1398, # CPU blocks: 819
"""

VLLM_NEWEST = """\
INFO 11-20 09:00:00 [utils.py:40]        █     █     █▄   ▄█
INFO 11-20 09:00:00 [utils.py:40]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.30.2
INFO 11-20 09:00:00 [utils.py:40]   █▄█▀ █     █     █     █  model   Qwen/Qwen3-8B
INFO 11-20 09:00:00 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 16384}
(EngineCore pid=5) INFO 11-20 09:00:20 [model_runner.py:428] Model loading took 15.27 GiB memory and 3.1 seconds
(EngineCore pid=5) INFO 11-20 09:00:40 [gpu_model_runner.py:6737] Estimated CUDA graph memory: 0.58 GiB total
(EngineCore pid=5) INFO 11-20 09:00:40 [gpu_worker.py:655] CUDA graph memory profiling is enabled (default since v0.21.0). \
The current --gpu-memory-utilization=0.9200 is equivalent to --gpu-memory-utilization=0.9127 without it.
(EngineCore pid=5) INFO 11-20 09:00:40 [gpu_worker.py:680] Available KV cache memory: 53.00 GiB
(EngineCore pid=5) INFO 11-20 09:00:40 [kv_cache_utils.py:2395] GPU KV cache size: 385,936 tokens, Maximum concurrency for \
16,384 tokens per request: 23.56x
(EngineCore pid=5) INFO 11-20 09:00:50 [gpu_worker.py:748] CUDA graph pool memory: 0.62 GiB (actual), 0.58 GiB (estimated), \
difference: 0.04 GiB (6.5%).
(EngineCore pid=5) INFO 11-20 09:00:50 [gpu_worker.py:800] Free memory on device (78.70/79.19 GiB) on startup. Desired GPU \
memory utilization is (0.92, 72.85 GiB). Actual usage is 15.60 GiB for consumed memory (weights + non-torch), 3.67 GiB for \
peak activation, and 0.62 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with ...
"""

VLLM_OOM = """\
INFO 10-06 12:00:01 [api_server.py:1971] vLLM API server version 0.19.0
INFO 10-06 12:00:01 [utils.py:233] non-default args: {'model': 'openai/gpt-oss-20b', 'gpu_memory_utilization': 0.95}
(EngineCore_DP0 pid=9) INFO 10-06 12:00:31 [gpu_model_runner.py:4370] Model loading took 13.72 GiB memory and 5.3 seconds
(EngineCore_DP0 pid=9) INFO 10-06 12:00:52 [gpu_worker.py:436] Available KV cache memory: 50.10 GiB
(EngineCore_DP0 pid=9) INFO 10-06 12:00:52 [kv_cache_utils.py:1314] GPU KV cache size: 1,094,288 tokens
(EngineCore_DP0 pid=9) INFO 10-06 12:01:02 [gpu_model_runner.py:5246] Graph capturing finished in 9 secs, took 0.80 GiB
(EngineCore_DP0 pid=9) ERROR 10-06 12:01:04 [core.py:843] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate \
512.00 MiB. GPU 0 has a total capacity of 79.19 GiB of which 300.00 MiB is free. Process 777 has 2.00 GiB memory in use. \
Including non-PyTorch memory, this process has 76.80 GiB memory in use. Of the allocated memory 72.50 GiB is allocated by \
PyTorch, with 640.00 MiB allocated in private pools (e.g., CUDA Graphs), and 1.25 GiB is reserved by PyTorch but unallocated.
"""

SGLANG = """\
[2025-11-01 10:00:00] server_args=ServerArgs(model_path='meta-llama/Llama-3.1-8B-Instruct', tokenizer_path='x', dtype='auto', \
quantization=None, kv_cache_dtype='auto', mem_fraction_static=0.85, max_running_requests=None, chunked_prefill_size=8192, \
context_length=32768, tp_size=2, pp_size=1, dp_size=1, enable_dp_attention=False, page_size=1, disable_cuda_graph=False, \
speculative_algorithm=None, device='cuda')
[2025-11-01 10:00:09 TP0] Init torch distributed begin.
[2025-11-01 10:00:11 TP0] Init torch distributed ends. mem usage=1.21 GB
[2025-11-01 10:00:11 TP1] Init torch distributed ends. mem usage=1.21 GB
[2025-11-01 10:00:12 TP0] Load weight begin. avail mem=77.40 GB
[2025-11-01 10:00:12 TP1] Load weight begin. avail mem=77.40 GB
[2025-11-01 10:00:20 TP1] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=69.82 GB, mem usage=7.58 GB.
[2025-11-01 10:00:20 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=69.82 GB, mem usage=7.58 GB.
[2025-11-01 10:00:21 TP0] KV Cache is allocated. #tokens: 952000, K size: 29.05 GB, V size: 29.05 GB
[2025-11-01 10:00:21 TP1] KV Cache is allocated. #tokens: 952000, K size: 29.05 GB, V size: 29.05 GB
[2025-11-01 10:00:21 TP0] Memory pool end. avail mem=10.90 GB
[2025-11-01 10:00:21 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=10.75 GB
[2025-11-01 10:00:40 TP0] Capture cuda graph end. Time elapsed: 18.70 s. mem usage=0.62 GB. avail mem=10.13 GB.
[2025-11-01 10:00:41 TP0] max_total_num_tokens=952000, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=2048, context_len=32768, available_gpu_mem=10.13 GB
"""

SGLANG_DRAFT = """\
[2025-11-01 10:00:00] server_args=ServerArgs(model_path='/models/Qwen3-8B', tp_size=1, speculative_algorithm='EAGLE3', \
speculative_num_draft_tokens=4, mem_fraction_static=0.8)
[2025-11-01 10:00:12] Load weight end. elapsed=3.10 s, type=Qwen3ForCausalLM, avail mem=62.00 GB, mem usage=15.40 GB.
[2025-11-01 10:00:13] KV Cache is allocated. #tokens: 300000, K size: 20.60 GB, V size: 20.60 GB
[2025-11-01 10:00:14] Capture cuda graph end. Time elapsed: 8.70 s. mem usage=0.50 GB. avail mem=18.00 GB.
[2025-11-01 10:00:16] Load weight end. elapsed=1.10 s, type=LlamaForCausalLMEagle3, avail mem=17.00 GB, mem usage=0.90 GB.
[2025-11-01 10:00:17] KV Cache is allocated. #tokens: 300000, K size: 0.57 GB, V size: 0.57 GB
[2025-11-01 10:00:18] Capture draft cuda graph end. Time elapsed: 1.00 s. mem usage=0.25 GB. avail mem=15.50 GB.
[2025-11-01 10:00:19] max_total_num_tokens=300000, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=512, context_len=40960
"""

SGLANG_HYBRID = """\
[2025-11-01 10:00:00] server_args=ServerArgs(model_path='openai/gpt-oss-20b', tp_size=1)
[2025-11-01 10:00:12] Load weight end. type=GptOssForCausalLM, dtype=torch.bfloat16, avail mem=64.00 GB, mem usage=13.60 GB.
[2025-11-01 10:00:13] KV Cache is allocated. #tokens: 800000, K size: 9.00 GB, V size: 9.00 GB
[2025-11-01 10:00:13] KV Cache is allocated. #tokens: 640000, K size: 7.00 GB, V size: 7.00 GB
[2025-11-01 10:00:13] SWAKVPool mem usage: 32.00 GB, swa size: 640000, full size: 800000
[2025-11-01 10:00:14] Mamba Cache is allocated. max_mamba_cache_size: 40, conv_state size: 0.25GB, ssm_state size: 1.75GB
[2025-11-01 10:00:19] max_total_num_tokens=800000, max_prefill_tokens=16384, max_running_requests=512, context_len=131072
"""

SGLANG_OLD = """\
[10:00:00] server_args=ServerArgs(model_path='meta-llama/Llama-3.1-8B', tp_size=1, mem_fraction_static=0.88)
[10:00:03 TP0] Load weight begin. avail mem=78.50 GB
[10:00:10 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.45 GB
[10:00:11 TP0] Memory pool end. avail mem=8.10 GB
[10:00:11 TP0] Capture cuda graph begin. This can take up to several minutes.
[10:00:30 TP0] max_total_num_tokens=444000, max_prefill_tokens=16384, max_running_requests=2049, context_len=131072
"""

TENSORRT = """\
[TensorRT-LLM] TensorRT-LLM version: 0.15.0
[TensorRT-LLM][INFO] Engine version 0.15.0 found in the config file, assuming engine(s) built by new builder API.
[TensorRT-LLM][INFO] MPI size: 2, MPI local size: 2, rank: 0
[TensorRT-LLM][INFO] TRTGptModel maxNumSequences: 256
[TensorRT-LLM][INFO] TRTGptModel maxBatchSize: 256
[TensorRT-LLM][INFO] TRTGptModel maxSequenceLen: 8192
[TensorRT-LLM][INFO] TRTGptModel maxNumTokens: 8192
[TensorRT-LLM][INFO] Loaded engine size: 7700 MiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 608.02 MiB for execution context memory.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.50 GB GPU memory for runtime buffers.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 512.00 MB GPU memory for decoder.
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 79.10 GiB, available: 66.00 GiB
[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 15200
[TensorRT-LLM][INFO] Number of tokens per block: 64.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 59.40 GiB for max tokens in paged KV cache (972800).
"""

TENSORRT_PYTORCH = """\
[TensorRT-LLM] TensorRT-LLM version: 1.1.0
[11/20/2025-10:00:00] [TRT-LLM] [I] LLM Args:
model='Qwen/Qwen3-8B' tokenizer=None dtype='auto' backend='pytorch' tensor_parallel_size=2 pipeline_parallel_size=1 \
max_batch_size=512 max_num_tokens=4096 max_seq_len=16384 kv_cache_config=KvCacheConfig(free_gpu_memory_fraction=0.85)
[11/20/2025-10:00:30] [TRT-LLM] [RANK 0] [I] Memory used after loading model weights (inside torch) in memory usage \
profiling: 7.80 GiB
[11/20/2025-10:00:30] [TRT-LLM] [RANK 0] [I] Memory used after loading model weights (outside torch) in memory usage \
profiling: 1.90 GiB
[11/20/2025-10:00:31] [TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.60 GiB for max tokens in paged KV cache (8192).
[11/20/2025-10:00:40] [TRT-LLM] [RANK 0] [I] Memory dynamically allocated during inference (inside torch) in memory usage \
profiling: 1.10 GiB
[11/20/2025-10:00:40] [TRT-LLM] [RANK 0] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage \
profiling: 2.70 GiB
[11/20/2025-10:00:40] [TRT-LLM] [RANK 0] [I] Peak memory during memory usage profiling (torch + non-torch): 12.20 GiB, \
available KV cache memory when calculating max tokens: 57.30 GiB, fraction is set 0.85, kv size is 73728. device total \
memory 79.19 GiB, , tmp kv_mem 0.60 GiB
[11/20/2025-10:00:41] [TensorRT-LLM][INFO] [MemUsageChange] Allocated 57.28 GiB for max tokens in paged KV cache (834176).
"""

LLAMACPP = """\
ggml_cuda_init: found 1 CUDA devices:
  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes
build: 5200 (abcdef0) with cc (Ubuntu) for x86_64-linux-gnu
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3090) - 23871 MiB free
llama_model_loader: loaded meta data with 29 key-value pairs and 291 tensors from /m/Llama-3.1-8B-Instruct-Q4_K_M.gguf \
(version GGUF V3 (latest))
llama_model_loader: - kv   0:                       general.architecture str              = llama
llama_model_loader: - kv   2:                               general.name str              = Llama 3.1 8B Instruct
print_info: file type   = Q4_K - Medium
print_info: n_ctx_train      = 131072
load_tensors: offloading 32 repeating layers to GPU
load_tensors: offloading output layer to GPU
load_tensors: offloaded 33/33 layers to GPU
load_tensors:   CPU_Mapped model buffer size =   281.81 MiB
load_tensors:        CUDA0 model buffer size =  4403.49 MiB
llama_context: n_seq_max     = 2
llama_context: n_ctx         = 16384
llama_context: n_ctx_per_seq = 8192
llama_context: n_batch       = 2048
llama_context: n_ubatch      = 512
llama_context: flash_attn    = 1
llama_context:  CUDA_Host  output buffer size =     0.98 MiB
llama_kv_cache_unified:      CUDA0 KV buffer size =  1088.00 MiB
llama_kv_cache_unified: size = 1088.00 MiB ( 16384 cells,  32 layers,  2 seqs), K (q8_0):  544.00 MiB, V (q8_0):  544.00 MiB
llama_context:      CUDA0 compute buffer size =   296.00 MiB
llama_context:  CUDA_Host compute buffer size =    40.01 MiB
llama_context: graph nodes  = 1094
"""

LLAMACPP_OLD = """\
main: build = 1500 (abcdef0)
llama_model_loader: loaded meta data with 19 key-value pairs and 291 tensors from ./llama-2-7b.Q4_0.gguf (version GGUF V2)
llm_load_print_meta: model ftype      = mostly Q4_0
llm_load_print_meta: general.name   = LLaMA v2
llm_load_tensors: ggml ctx size =    0.10 MB
llm_load_tensors: mem required  =   70.41 MB
llm_load_tensors: offloading 32 repeating layers to GPU
llm_load_tensors: offloaded 35/35 layers to GPU
llm_load_tensors: VRAM used: 3577.56 MB
llama_new_context_with_model: n_ctx      = 4096
llama_kv_cache_init: VRAM kv self = 2048.00 MB
llama_new_context_with_model: kv self size  = 2048.00 MB
llama_new_context_with_model: VRAM scratch buffer: 291.00 MB
llama_new_context_with_model: total VRAM used: 5916.57 MB (model: 3577.56 MB, context: 2339.00 MB)
"""

LLAMACPP_TWICE = """\
build: 7400 (abcdef0) with GNU 13
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 4090) (0000:01:00.0) - 23500 MiB free
llama_model_load_from_file_impl: using device CUDA1 (NVIDIA GeForce RTX 4090) (0000:02:00.0) - 23500 MiB free
llama_model_loader: loaded meta data with 30 key-value pairs and 399 tensors from /m/Qwen3-8B-Q8_0.gguf (version GGUF V3)
load_tensors:        CUDA0 model buffer size =     0.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =     0.00 MiB
sched_reserve:      CUDA0 compute buffer size =   900.00 MiB
load_tensors:          CPU model buffer size =   600.00 MiB
load_tensors:        CUDA0 model buffer size =  4000.00 MiB
load_tensors:        CUDA1 model buffer size =  3700.00 MiB
llama_context: n_ctx         = 8192
llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells
llama_kv_cache:      CUDA0 KV buffer size =   608.00 MiB
llama_kv_cache:      CUDA1 KV buffer size =   544.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =    32.00 MiB
llama_memory_recurrent:      CUDA1 RS buffer size =    10.00 MiB
sched_reserve:      CUDA0 compute buffer size =   300.00 MiB
sched_reserve:      CUDA1 compute buffer size =   310.00 MiB
sched_reserve:      CUDA0 compute buffer size =   320.00 MiB
srv    load_model: loading draft model '/m/Qwen3-0.6B-Q8_0.gguf'
llama_model_loader: loaded meta data with 30 key-value pairs and 311 tensors from /m/Qwen3-0.6B-Q8_0.gguf (version GGUF V3)
load_tensors:        CUDA0 model buffer size =   600.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =   100.00 MiB
sched_reserve:      CUDA0 compute buffer size =    50.00 MiB
alloc_compute_meta:      CUDA0 compute buffer size =    70.00 MiB
common_memory_breakdown_print: | memory breakdown [MiB] | total   free     self   model   context   compute    unaccounted |
common_memory_breakdown_print: |   - CUDA0 (RTX 4090)   | 24080 = 17500 + (5710 =  4600 +     740 +     370) +         870 |
common_memory_breakdown_print: |   - Host               |                  640 =   600 +       0 +      40                |
"""

OLLAMA = """\
time=2025-11-01T10:00:00.000Z level=INFO source=server.go:400 msg="starting runner" cmd="/usr/bin/ollama runner --ollama-engine"
time=2025-11-01T10:00:00.100Z level=INFO source=runner.go:1000 msg=load request="{Operation:commit LoraPath:[] Parallel:2 \
BatchSize:512 FlashAttention:true KvSize:8192 KvCacheType: NumThreads:8 GPULayers:35}"
time=2025-11-01T10:00:00.200Z level=INFO source=ggml.go:131 msg="" architecture=gemma3 file_type=Q4_K_M name="Gemma 3 4b It" \
description="" num_tensors=883 num_key_values=36
time=2025-11-01T10:00:01.000Z level=INFO source=device.go:240 msg="model weights" device=CUDA0 size="3.1 GiB"
time=2025-11-01T10:00:01.000Z level=INFO source=device.go:245 msg="model weights" device=CPU size="525.0 MiB"
time=2025-11-01T10:00:01.000Z level=INFO source=device.go:251 msg="kv cache" device=CUDA0 size="338.0 MiB"
time=2025-11-01T10:00:01.000Z level=INFO source=device.go:262 msg="compute graph" device=CUDA0 size="1.1 GiB"
time=2025-11-01T10:00:01.000Z level=INFO source=device.go:272 msg="total memory" size="5.0 GiB"
"""
