"""The graphs llama.cpp computes, written as its own code writes them, so that ggml's allocator packs them alike."""
