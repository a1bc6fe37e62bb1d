/** Memory of a serving plan: how much context, how many users. */

import { asking } from "./asking.js";

export const show = asking({
  command: "serve",
  first: [
    "engine",
    "context",
    "concurrency",
    "input-len",
    "output-len",
    "weights",
    "kv-dtype",
    "memory-fraction",
    "tp",
    "pp",
    "dp",
  ],
  example: { "model": "llama-3.1-8b", "gpus": "h100-sxm-80gb", "context": "32k", "concurrency": "16" },
});
