"""One rank of a distributed job, simulated without the others, without network and without NCCL."""
