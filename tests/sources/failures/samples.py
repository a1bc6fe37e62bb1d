"""Messages in the words of the sources that print them, figures made up: family, wording, text, some of its figures."""

from __future__ import annotations

from typing import Any, Final

GIB: Final = 1 << 30
MIB: Final = 1 << 20
KIB: Final = 1 << 10

SAMPLES: Final[list[tuple[str, str, str, dict[str, Any]]]] = [
    ("torch-cuda", "cached-1.0", "CUDA out of memory. Tried to allocate 1.50 GiB (GPU 3; 11.00 GiB total capacity; 7.25 GiB already allocated; 512.00 MiB free; 2.00 GiB cached)", {"tried_bytes": 1610612736, "device": 3, "unallocated_bytes": 2 * GIB, "free_bytes": 512 * MIB}),
    ("torch-cuda", "reserved-1.4-fraction", "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 8.00 GiB total capacity; 1.00 GiB already allocated; 6.00 GiB free; 1.25 GiB allowed; 1.50 GiB reserved in total by PyTorch)", {"allowed_bytes": 1342177280, "reserved_bytes": 1610612736, "free_bytes": 6 * GIB}),
    ("torch-cuda", "capacity-2.10-fraction-pools-other-process", "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 79.25 GiB of which 0 bytes is free. Process 12 has 1.50 GiB memory in use. Process 13 has 512.00 MiB memory in use. Including non-PyTorch memory, this process has 70.00 GiB memory in use. 64.00 GiB allowed; Of the allocated memory 60.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 3.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.", {"other_processes_bytes": 2 * GIB, "other_processes": 2, "process_bytes": 70 * GIB, "allowed_bytes": 64 * GIB, "private_pools_bytes": GIB, "free_bytes": 0}),
    ("torch-cuda", "1eb", "CUDA out of memory. Tried to allocate more than 1EB memory.", {}),
    ("torch-cuda", "preempted-2.13", "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 2.00 GiB", {"tried_bytes": 2 * GIB}),
    ("torch-cuda", "driver", "torch.AcceleratorError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", {}),
    ("torch-cuda", "driver-api", "RuntimeError: CUDA driver error: out of memory", {}),
    ("torch-cuda", "runtime-0.4", "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58", {}),
    ("torch-cuda", "cudamallocasync-2.0", "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 10.50 GiB\nRequested               : 2.00 GiB\nDevice limit            : 12.00 GiB\nFree (according to CUDA): 0 bytes\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB", {"allocated_bytes": 11274289152, "tried_bytes": 2 * GIB, "total_bytes": 12 * GIB, "free_bytes": 0}),
    ("torch-cuda", "tried-only", "CUDA out of memory. Tried to allocate 734.00 MiB", {"tried_bytes": 734 * MIB}),
    ("torch-hip", "capacity-2.2", "Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 15.25 GiB of which 15.00 GiB is free. try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation.", {"total_bytes": 16374562816}),
    ("torch-hip", "driver", "RuntimeError: HIP error: out of memory", {}),
    ("torch-xpu", "capacity-2.2", "XPU out of memory. Tried to allocate 59.50 GiB. GPU 0 has a total capacity of 28.50 GiB of which 12.00 GiB is free. Of the allocated memory 15.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.", {"free_bytes": 12 * GIB, "unallocated_bytes": GIB}),
    ("torch-xpu", "ur-device", "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", {}),
    ("torch-npu", "reserved+active-fraction", "NPU out of memory. Tried to allocate 22.00 MiB (NPU 0; 61.00 GiB total capacity; 10.25 GiB already allocated; 10.50 GiB current active; 19.50 MiB free; 20.00 GiB allowed; 10.75 GiB reserved in total by PyTorch).If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.", {"active_bytes": 11274289152, "allowed_bytes": 20 * GIB}),
    ("torch-npu", "workspace", "NPU out of memory. NPUWorkspaceAllocator tried to allocate 2.00 GiB(NPU 5; 61.00 GiB total capacity; 1.00 GiB free). If you want to reduce memory usage, take a try to set the environment variable TASK_QUEUE_ENABLE=1.", {"tried_bytes": 2 * GIB, "device": 5, "free_bytes": GIB}),
    ("torch-npu", "preempted-2.13", "NPU out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 64.00 MiB", {"tried_bytes": 64 * MIB}),
    ("torch-npu", "pinned", "Malloc pin memory failed, host out of memory, Rried to allocate size: 4096, total_allocated_memory: 1024, total_reserved_memory: 2048. You might be able", {"tried_bytes": 4096, "allocated_bytes": 1024, "reserved_bytes": 2048}),
    ("torch-npu", "el0004", "EL0004: [PID: 28794] 2025-08-26-03:58:55.257.127 Failed to allocate memory.\n        Possible Cause: Available memory is insufficient.", {"reason": "Available memory is insufficient"}),
    ("torch-npu", "acl-207001", "NPU function error: aclrtMalloc, error code is 207001", {}),
    ("torch-musa", "capacity-2.2", "MUSA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 48.00 GiB of which 512.00 KiB is free. Of the allocated memory 40.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.", {"free_bytes": 512 * KIB}),
    ("torch-mlu", "reserved-1.4", "MLU out of memory. Tried to allocate 1.00 GiB (MLU 2; 23.50 GiB total capacity; 20.00 GiB already allocated; 1.00 GiB free; 21.00 GiB reserved in total by PyTorch)", {"device": 2}),
    ("torch-mlu", "capacity-2.2", "MLU out of memory. Tried to allocate 1.00 GiB. MLU 2 has a total capacity of 23.50 GiB of which 1.50 GiBis free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.", {"device": 2, "free_bytes": 1610612736}),
    ("torch-gcu", "capacity-2.2", "GCU out of memory. Tried to allocate 1.00 GiB. GCU 2 has a total capacity of 23.50 GiB of which 1.50 GiB is free.", {"device": 2}),
    ("torch-device", "reserved-1.4", "SDAA out of memory. Tried to allocate 1.00 GiB (SDAA 2; 23.50 GiB total capacity; 20.00 GiB already allocated; 1.00 GiB free; 21.00 GiB reserved in total by PyTorch)", {"device": 2}),
    ("torch-hpu", "devmem", "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::939524096 (896)MB", {"tried_bytes": 939524096, "reason": "PT_DEVMEM"}),
    ("torch-mps", "mps-private-pool", "RuntimeError: MPS backend out of memory (MPS allocated: 1.50 GB, other allocations: 7.25 GB, max allowed: 9.00 GB). Tried to allocate 563.50 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).", {"allocated_bytes": 1610612736, "other_allocations_bytes": 7784628224, "allowed_bytes": 9 * GIB, "tried_bytes": 590872576}),
    ("torch-mps", "mps-shared-pool", "MPS backend out of memory (MPS allocated: 8.00 GiB, other allocations: 384.00 KiB, max allowed: 9.00 GiB). Tried to allocate 256 bytes on shared pool.", {"tried_bytes": 256, "other_allocations_bytes": 384 * KIB}),
    ("torch-mps", "mps-1.13", "MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.00 GB). Tried to allocate 2.00 GB.", {"tried_bytes": 2 * GIB}),
    ("torch-mps", "mps-buffer-size", "RuntimeError: Invalid buffer size: 18.00 GB", {"tried_bytes": 18 * GIB}),
    ("torch-cpu", "cpu-posix", "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 123456789012 bytes. Error code 12 (Cannot allocate memory)", {"tried_bytes": 123456789012, "error_code": "12"}),
    ("torch-cpu", "cpu-windows", "DefaultCPUAllocator: not enough memory: you tried to allocate 4096 bytes.", {"tried_bytes": 4096}),
    ("torch-dataloader", "bus-error", "RuntimeError: DataLoader worker (pid 4321) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.", {"pid": 4321}),
    ("torch-dataloader", "killed", "RuntimeError: DataLoader worker (pid 99) is killed by signal: Killed. ", {"pid": 99, "reason": "Killed"}),
    ("torch-directml", "video-memory", "RuntimeError: Could not allocate tensor with 1664090112 bytes. There is not enough GPU video memory available!", {"tried_bytes": 1664090112}),
    ("tensorflow", "bfc", "ResourceExhaustedError: OOM when allocating tensor with shape[32,512,64,64] and type half on /job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc [Op:Conv2D]", {"shape": "[32,512,64,64]", "dtype": "half", "device": 1, "allocator": "GPU_1_bfc", "name": "Conv2D"}),
    ("tensorflow", "bfc-ran-out", "W tensorflow/core/common_runtime/bfc_allocator.cc:456] Allocator (GPU_0_bfc) ran out of memory trying to allocate 4.50GiB (rounded to 4831838208)requested by op conv/Add", {"tried_bytes": 4831838208, "buffer_bytes": 4831838208, "allocator": "GPU_0_bfc", "name": "conv/Add"}),
    ("tensorflow", "bfc-dump", "I tensorflow/core/common_runtime/bfc_allocator.cc:1071] Stats: \nLimit:                     10737418240\nInUse:                     10000000000\nMaxInUse:                  10200000000\nNumAllocs:                       12345\nMaxAllocSize:               4294967296", {"limit_bytes": 10737418240, "allocated_bytes": 10000000000, "allocated_peak_bytes": 10200000000, "blocks": 12345}),
    ("tensorflow", "device", "E tensorflow/stream_executor/cuda/cuda_driver.cc:802] failed to allocate 3.51G (3766274048 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory", {"tried_bytes": 3766274048}),
    ("jax", "trying", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 33762398024 bytes.", {"tried_bytes": 33762398024}),
    ("jax", "trying", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8.00GiB", {"tried_bytes": 8 * GIB}),
    ("jax", "allocating", "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 1073741824 bytes.", {"tried_bytes": GIB}),
    ("jax", "hbm", "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 35.50G of 31.25G hbm. Exceeded hbm capacity by 4.25G.\n\nTotal hbm usage >= 35.75G:\n    reserved        256.00M \n    program          29.75G \n    arguments         5.75G \n", {"memory_space": "hbm", "used_bytes": 38117834752, "limit_bytes": 33554432000, "exceeded_bytes": 4563402752, "reserved_bytes": 256 * MIB, "arguments_bytes": 6174015488}),
    ("jax", "allocate", "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 50.00M. That was not possible. There are 27.50M free.; (0x0x0_HBM0)", {"tried_bytes": 50 * MIB, "free_bytes": 28835840}),
    ("jax", "reserve", "Attempting to reserve 29.50G at the bottom of memory. That was not possible. There are 147.50M free, 0B reserved, and 147.50M reservable.", {"tried_bytes": 31675383808, "free_bytes": 154664960}),
    ("jax", "rematerialization", "W1021 hlo_rematerialization.cc:3005] Can't reduce memory use below 2.50GiB (2684354560 bytes) by rematerialization; only reduced to 31.50GiB (33822867456 bytes)", {"needed_bytes": 33822867456, "limit_bytes": 2684354560}),
    ("mxnet", "cudamalloc", "mxnet.base.MXNetError: [10:00:00] src/storage/./pooled_storage_manager.h:157: cudaMalloc failed: out of memory", {}),
    ("paddle", "gpu", "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 27.000000MB memory on GPU 0, 10.500000GB memory has been allocated and available memory is only 4.062500MB.\n\nPlease check", {"tried_bytes": 27 * MIB, "allocated_bytes": 11274289152, "free_bytes": 4259840, "device": 0}),
    ("cupy", "out-of-memory", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes (allocated so far: 1,024 bytes, limit set to: 4,096 bytes).", {"tried_bytes": 8000000000, "allocated_bytes": 1024, "allowed_bytes": 4096}),
    ("rmm", "bad-alloc", "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /rmm/include/rmm/mr/device/cuda_memory_resource.hpp:70: cudaErrorMemoryAllocation out of memory", {}),
    ("rmm", "pool", "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/rmm/mr/device/pool_memory_resource.hpp:276: Maximum pool size exceeded", {}),
    ("mindspore", "alloc", "RuntimeError: Device(id:2) memory isn't enough and alloc failed, kernel name: Default/Conv2D-op1, alloc size: 1048576B.", {"tried_bytes": 1048576, "device": 2, "name": "Default/Conv2D-op1"}),
    ("oneflow", "bin", "RuntimeError: CUDA out of memory when allocate 4096 bytes memory", {"tried_bytes": 4096}),
    ("julia", "gpu", "Out of GPU memory trying to allocate 3.000 GiB\nEffective GPU memory usage: 99.50% (7.544 GiB/7.582 GiB)\nMemory pool usage: 5.375 GiB (7.000 GiB reserved)", {"tried_bytes": 3 * GIB, "allocated_bytes": 5771362304, "reserved_bytes": 7 * GIB}),
    ("mlx", "malloc", "RuntimeError: [metal::malloc] Attempting to allocate 134668044288 bytes which is greater than the maximum allowed buffer size of 86586540032 bytes.", {"tried_bytes": 134668044288, "limit_bytes": 86586540032}),
    ("cublas", "not-initialized-torch", "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", {"call": "cublasCreate(handle)"}),
    ("cublas", "tensorflow", "E tensorflow/stream_executor/cuda/cuda_blas.cc:226] failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED", {}),
    ("cudnn", "no-engine", "RuntimeError: GET was unable to find an engine to execute this computation", {}),
    ("cudnn", "no-algorithm", "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution", {}),
    ("cudnn", "internal-error-torch", "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", {}),
    ("cuda-libraries", "cusolver-alloc-torch", "RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`", {"call": "cusolverDnCreate(handle)"}),
    ("cuda-libraries", "cufft-alloc", "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED", {}),
    ("nccl", "out-of-memory", "node1:123:456 [0] transport/net.cc:234 NCCL WARN Cuda failure 'out of memory'", {}),
    ("nccl", "calloc", "NCCL WARN Failed to CUDA calloc async 608 bytes", {"tried_bytes": 608}),
    ("cuda", "driver", "numba.cuda: CUDA_ERROR_OUT_OF_MEMORY", {}),
    ("not-memory", "illegal-access", "RuntimeError: CUDA error: an illegal memory access was encountered", {}),
    ("triton", "shared-memory", "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 263356, Hardware limit: 232448. Reducing block sizes or `num_stages` may help.", {"memory_space": "shared memory", "needed_bytes": 263356, "limit_bytes": 232448}),
    ("vllm", "free-on-startup", "ValueError: Free memory on device cuda:0 (12.25/23.50 GiB) on startup is less than desired GPU memory utilization (0.92, 21.50 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.", {"free_bytes": 13153337344, "total_bytes": 25232932864, "memory_fraction": 0.92, "desired_bytes": 23085449216, "device": 0}),
    ("vllm", "profiling-freed", "AssertionError: Error in memory profiling. Initial free memory 20.5 GiB, current free memory 21.0 GiB. This happens when other processes sharing the same container release GPU memory while vLLM is profiling during initialization.", {"free_bytes": 22011707392}),
    ("vllm", "profiling-freed", "AssertionError: Error in memory profiling. Initial free memory 84987740160, current free memory 84987740160. This happens when the GPU memory was not properly cleaned up before initializing the vLLM instance.", {"free_bytes": 84987740160}),
    ("vllm", "sampler-warmup", "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.", {"sequences": 1024}),
    ("vllm", "preempted", "WARNING 05-09 00:49:33 scheduler.py:1057] Sequence group 0 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. total_cumulative_preemption_cnt=51", {"sequences": 51, "name": "RECOMPUTE"}),
    ("vllm", "cumem", "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62", {}),
    ("vllm", "kv-v1-needed", "ValueError: The model's KV cache needed (4.5 GB) to store one request with the models's max seq len (32768) is larger than the available KV Cache memory (1.25 GB). Try increasing `gpu_memory_utilization`", {"kv_needed_bytes": 4831838208, "kv_available_bytes": 1342177280, "max_model_len": 32768}),
    ("sglang", "retract", "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.9998 -> 1.0000", {"sequences": 1}),
    ("sglang", "prefill", "Prefill out of memory. Try to lower your batch size.\nTry to allocate 4096 tokens.\nAvailable full tokens: 3136 (full_available_size=3136 + full_evictable_size_=0)", {"tried_tokens": 4096, "free_tokens": 3136}),
    ("sglang", "mem-fraction", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.72", {"memory_fraction": 0.72}),
    ("tensorrt-llm", "runtime", "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, mMemPool->getPool(), mCudaStream->get()): out of memory (/src/tensorrt_llm/cpp/runtime/tllmBuffers.h:112)", {}),
    ("tensorrt", "requested", "[TRT] [W] Requested amount of GPU memory (2833252352 bytes) could not be allocated. There may not be enough free memory for allocation to succeed.", {"tried_bytes": 2833252352}),
    ("tensorrt", "size", "[executionContext.cpp::initializeExecutionContext::625] Error Code 2: OutOfMemory (Requested size was 20132809216 bytes.)", {"tried_bytes": 20132809216}),
    ("tensorrt", "tactic", "[W] Skipping tactic 0 due to insufficient memory on requested size of 1290442752 detected for tactic 0x04.", {"tried_bytes": 1290442752}),
    ("tgi", "total-tokens", "Not enough memory to handle `max_total_tokens=16000`", {"tried_tokens": 16000}),
    ("lmdeploy", "turbomind", "[TM][ERROR] CUDA runtime error: out of memory /opt/lmdeploy/src/turbomind/core/allocator.cc:49", {}),
    ("mlc", "estimate", "Insufficient GPU memory error: The available single GPU memory is 6963.000 MB, which is less than the sum of model weight size (4308.500 MB) and temporary buffer size (6000.250 MB).", {"limit_bytes": 6963 * MIB, "weights_bytes": 4517789696}),
    ("exllama", "load", "RuntimeError: Insufficient VRAM for model and cache", {}),
    ("onnxruntime", "arena-limit", "BFCArena::AllocateRawInternal(size_t, bool) Available memory of 34699008 is smaller than requested bytes of 945041920", {"free_bytes": 34699008, "tried_bytes": 945041920}),
    ("onnxruntime", "arena", "Failed to allocate memory for requested buffer of size 31568306688", {"tried_bytes": 31568306688}),
    ("openvino", "max-alloc", "[GPU] Exceeded max size of memory object allocation: requested 9172942848 bytes, but max alloc size supported by device is 4294959104 bytes.", {"tried_bytes": 9172942848, "limit_bytes": 4294959104}),
    ("comfyui", "advice", "Got an OOM, unloading all loaded models.", {}),
    ("bitsandbytes", "ops", "Error out of memory at line 380 in file /src/csrc/ops.cu", {}),
    ("accelerate", "batch-size", "RuntimeError: No executable batch size found, reached zero.", {}),
    ("deepspeed", "minimum", "The model requires at least 40 GB memory", {"needed_bytes": 40 * GIB}),
    ("ctranslate2", "runtime", "RuntimeError: CUDA failed with error out of memory", {}),
    ("candle", "driver", "Error: DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")", {}),
    ("tinygrad", "alloc", "MemoryError: Allocation of 2.00 GB failed on CUDA. Used: 7.00 GB", {"tried_bytes": 2 * GIB, "used_bytes": 7 * GIB}),
    ("llama.cpp", "vulkan", "ggml_vulkan: Device memory allocation of size 1048898304 failed.\nggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory\nalloc_tensor_range: failed to allocate Vulkan0 buffer of size 1048898304\nllama_model_load: error loading model: unable to allocate Vulkan0 buffer", {"tried_bytes": 1048898304, "buffer_bytes": 1048898304, "buffer": "Vulkan0"}),
    ("llama.cpp", "metal", "ggml_metal_graph_compute: command buffer 1 failed with status 5\nerror: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", {}),
    ("llama.cpp", "metal", "ggml_backend_metal_buffer_type_alloc_buffer: error: failed to allocate buffer, size =  2048.00 MiB", {"tried_bytes": 2 * GIB}),
    ("llama.cpp", "cuda", "CUDA error: out of memory\n  current device: 1, in function alloc at ggml/src/ggml-cuda/ggml-cuda.cu:522\n  cuMemCreate(&handle, reserve_size, &prop, 0)", {"device": 1, "name": "alloc", "call": "cuMemCreate"}),
    ("llama.cpp", "sycl", "ggml_backend_sycl_buffer_type_alloc_buffer: can't allocate 4294967296 Bytes of memory on device", {"tried_bytes": 4 * GIB}),
    ("llama.cpp", "pinned", "ggml_cuda_host_malloc: failed to allocate 512.50 MiB of pinned memory: out of memory", {"tried_bytes": 537395200}),
    ("llama.cpp", "mlock", "warning: failed to mlock 1073741824-byte buffer (after previously locking 2048 bytes): Cannot allocate memory\nTry increasing RLIMIT_MEMLOCK ('ulimit -l' as root).", {"tried_bytes": GIB, "allocated_bytes": 2048}),
    ("llama.cpp", "context-pool", "ggml_new_object: not enough space in the context's memory pool (needed 184551760, available 184549376)", {"needed_bytes": 184551760, "free_bytes": 184549376}),
    ("llama.cpp", "no-slot", "decode: failed to find a memory slot for batch of size 512", {"tried_tokens": 512}),
    ("llama.cpp", "fit", "common_fit_params: failed to fit params to free device memory: n_gpu_layers already set by user to 999, abort", {}),
    ("ollama", "system-memory", "Error: model requires more system memory (5.6 GiB) than is available (3.4 GiB)", {"needed_bytes": 6012954214, "free_bytes": 3650722202}),
    ("ollama", "runner", "Error: llama runner process has terminated: error loading model: unable to allocate CUDA0 buffer", {}),
    ("linux", "kernel", "[12345.678901] Out of memory: Killed process 4321 (python3) total-vm:98765432kB, anon-rss:54321000kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1234kB oom_score_adj:0", {"pid": 4321, "name": "python3", "resident_bytes": 54321000 * KIB, "virtual_bytes": 98765432 * KIB}),
    ("linux", "cgroup", "Memory cgroup out of memory: Killed process 7 (vllm) total-vm:100kB, anon-rss:50kB", {"pid": 7, "resident_bytes": 50 * KIB}),
    ("process-killed", "oomkilled", "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137", {"exit_code": 137}),
    ("process-killed", "exit-137", "container exited with code 137", {}),
    ("process-killed", "elastic-sigkill", "  exitcode  : -9 (pid: 4567)\n  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL) received by PID 4567", {"pid": 4567}),
    ("slurm", "oom-kill-event", "slurmstepd: error: Detected 1 oom_kill event in StepId=123.batch. Some of the step tasks have been OOM Killed.", {"num_ooms": 1}),
    ("slurm", "oom-kill-event", "slurmstepd: error: Detected 3 oom-kill event(s) in step 123.0 cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.", {"num_ooms": 3}),
    ("ray", "memory-monitor", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.62.231, ID: e5d953) where the task (task ID: 43, name=f, pid=11362, memory used=1.25GB) was running was 27.75GB / 28.75GB (0.962273), which exceeds the memory usage threshold of 0.95.", {"resident_bytes": 1342177280, "used_bytes": 29796335616, "total_bytes": 30870077440, "used_fraction": 0.962273, "threshold": 0.95}),
    ("python", "numpy", "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 12.5 GiB for an array with shape (1000, 1677722) and data type float64", {"tried_bytes": 13421772800, "shape": "(1000, 1677722)", "dtype": "float64"}),
    ("python", "memory-error", "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nMemoryError", {}),
    ("windows", "paging-file", "OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading \"C:\\torch\\lib\\cublas64_11.dll\" or one of its dependencies.", {}),
    ("memory-summary", "summary", """|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 1                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 2            |        cudaMalloc retries: 3         |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |   9999 MiB |  10240 MiB |  99999 MiB |  90000 MiB |
|       from large pool |   9998 MiB |  10239 MiB |  99998 MiB |  89998 MiB |
|---------------------------------------------------------------------------|
| Active memory         |  10000 MiB |  10241 MiB |  99999 MiB |  90000 MiB |
|---------------------------------------------------------------------------|
| Requested memory      |   9990 MiB |  10230 MiB |  99999 MiB |  90000 MiB |
|---------------------------------------------------------------------------|
| GPU reserved memory   |  12288 MiB |  12290 MiB |  12290 MiB |      0 B   |
|---------------------------------------------------------------------------|
| Non-releasable memory | 512000 KiB |   1024 MiB |  50000 MiB |  49500 MiB |
|---------------------------------------------------------------------------|
| Oversize GPU segments |       0    |       0    |       0    |       0    |
|===========================================================================|
""", {"device": 1, "num_ooms": 2, "num_alloc_retries": 3, "allocated_bytes": 9999 * MIB, "allocated_peak_bytes": 10240 * MIB, "reserved_bytes": 12288 * MIB, "inactive_split_bytes": 512000 * KIB, "requested_peak_bytes": 10230 * MIB}),
    ("rocm-smi", "vram", "GPU[0]\t\t: VRAM Total Memory (B): 17163091968\nGPU[0]\t\t: VRAM Total Used Memory (B): 1024", {"device": 0, "total_bytes": 17163091968, "used_bytes": 1024}),
]  # fmt: skip
