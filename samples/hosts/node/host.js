// host.js: runs a packager bundle from Node.js by addon.cpp, which see for how it is built.
//
//     node host.js ./model.so input.f32 output.f32
//
// The input file holds the model's one float32 input, little-endian, row-major. Where the first extent of the input is
// symbolic it follows from the size of the file. All outputs are written one after another.
"use strict";

const fs = require("node:fs");
const { open } = require("./bundle.node");

function describe(info) {
  return `${info.name}: ${info.dtype} [${info.shape.join(", ")}]`;
}

function readInput(bundle, path) {
  const [info, ...others] = bundle.inputs;
  if (!info || others.length || info.dtype !== "float32") throw new Error("needs a model of one float32 input");
  const data = fs.readFileSync(path);
  const [first, ...rest] = info.shape;
  if (rest.some((extent) => typeof extent === "string")) throw new Error("only the first dim may vary");
  const row = rest.reduce((product, extent) => product * extent, 4);
  const shape = typeof first === "string" ? [Math.floor(data.length / row), ...rest] : info.shape;
  if (!data.length || data.length !== shape.reduce((product, extent) => product * extent, 4)) {
    throw new Error(`${path}: its size is not that of the input`);
  }
  return { shape, data };
}

async function main(bundlePath, inputPath, outputPath, ...others) {
  if (!outputPath || others.length) throw new Error("usage: node host.js BUNDLE INPUT OUTPUT");
  const bundle = open(bundlePath);
  console.log(`model ${bundle.name}`);
  for (const info of bundle.inputs) console.log(`input ${describe(info)}`);
  for (const info of bundle.outputs) console.log(`output ${describe(info)}`);
  const outputs = await bundle.run([readInput(bundle, inputPath)]);
  fs.writeFileSync(outputPath, Buffer.concat(outputs.map((output) => Buffer.from(output.data))));
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(`error: ${error.message}`);
  process.exitCode = 1;
});
