/** Memory of a training plan. */

import questions from "../questions.json" with { type: "json" };
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
  example: questions.pages.train,
});
