/** Memory of a serving plan: how much context, how many users. */

import questions from "../questions.json" with { type: "json" };
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
  example: questions.pages.serve,
});
