// llama.cpp on the CPU, through npm node-llama-cpp: one measured wave of answers for each line of standard input.
//
//   cd FOLDER && npm install node-llama-cpp@3.21.1 --ignore-scripts      (prebuilt; nothing is compiled)
//   echo '{"prompts": ["Once upon a time"], "tokens": 64}' | node llamacpp.mjs FOLDER MODEL.gguf [--threads N]
//
// The prompts of a line are answered at once, greedily, with `tokens` tokens each, past any end of text. One line
// comes back: {"answers": [{"sent", "first", "last", "prompt_tokens", "tokens"}]}, times in seconds of one clock.

import { readFile } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const USAGE = "node llamacpp.mjs FOLDER MODEL.gguf [--threads N] [--context TOKENS]";
const BATCH_TOKENS = 512;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    threads: { type: "string", default: String(availableParallelism()) },
    context: { type: "string", default: "2048" },
    help: { type: "boolean", short: "h" },
  },
});
if (values.help || positionals.length !== 2) {
  console.log(USAGE);
  process.exit(values.help ? 0 : 2);
}
const [folder, modelPath] = positionals;
const threads = Number(values.threads);

// A script finds packages beside itself only; this one takes the folder as an argument.
async function load() {
  const root = resolve(folder, "node_modules", "node-llama-cpp");
  const { main } = JSON.parse(await readFile(join(root, "package.json"), "utf8"));
  return import(pathToFileURL(join(root, main)).href);
}

const { getLlama } = await load();
const llama = await getLlama({ gpu: false, build: "never", maxThreads: threads, logLevel: "error" });
const model = await llama.loadModel({ modelPath });
const waves = new Map();

// One context for each number of streams, so that a single stream is not measured in a context of many.
async function sequencesFor(streams) {
  if (!waves.has(streams)) {
    const contextSize = Number(values.context);
    const context = await model.createContext({ contextSize, sequences: streams, batchSize: BATCH_TOKENS, threads });
    waves.set(streams, Array.from({ length: streams }, () => context.getSequence()));
  }
  return waves.get(streams);
}

const now = () => performance.now() / 1000;

async function answer(sequence, tokens, count) {
  const sent = now();
  let first = 0;
  let last = 0;
  let made = 0;
  for await (const _ of sequence.evaluate(tokens, { temperature: 0, yieldEogToken: true })) {
    made += 1;
    last = now();
    if (made === 1) first = last;
    if (made === count) break;
  }
  return { sent, first, last, prompt_tokens: tokens.length, tokens: made };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { prompts, tokens } = JSON.parse(line);
  const sequences = await sequencesFor(prompts.length);
  await Promise.all(sequences.map((sequence) => sequence.clearHistory()));
  const texts = prompts.map((prompt) => model.tokenize(prompt));
  const answers = await Promise.all(texts.map((text, i) => answer(sequences[i], text, tokens)));
  console.log(JSON.stringify({ answers }));
}
process.exit(0);
