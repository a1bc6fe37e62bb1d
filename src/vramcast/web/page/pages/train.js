/** Memory of a training plan. */

import { asking } from "./asking.js";

export const show = asking({
  command: "train",
  first: [
    "engine",
    "seq-len",
    "micro-batch",
    "grad-accum",
    "precision",
    "recompute",
    "shards",
    "optimizer",
    "peft",
    "tp",
    "pp",
    "cp",
    "ep",
  ],
  example: { "model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "seq-len": "8k" },
});
