"""Running GPUs: read, shown, recorded, and held beside what was predicted for them."""
