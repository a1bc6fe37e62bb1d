/** The cards of the catalogue. */

import { h } from "../dom.js";
import { bytes } from "../format.js";
import { productText } from "../names.js";
import { askingLinks, catalogue, choicesOf } from "./catalogue.js";

const TERA = 1e12;
const GIGA = 1e9;
const GIB = 2 ** 30;

const per = (unit) => (value) => Number((value / unit).toPrecision(4)).toLocaleString("en-US");

/** A rate of tensor cores for 16-bit products; older cards have one for fp16 only. */
const halfRate = ({ bf16_flops: bf16, fp16_flops: fp16 }) => bf16 ?? fp16;

function columns(t) {
  const figure = (key, name, value, written, hint) => ({
    key, name, number: true, down: true, hint, value, cell: (row) =>
      (value(row) === undefined ? "" : written(value(row))),
  });
  return [
    { key: "name", name: t("gpu"), value: ({ name, product }) => productText(product || name),
      cell: ({ name, product }) => [productText(product || name), h("small", {}, ` ${name}`)] },
    { key: "arch", name: t("generation"), value: ({ arch }) => arch },
    figure("usable", t("usable.memory"), (row) => row.visible_bytes, (value) => bytes(value, 1), t("usable.hint")),
    { ...figure("plate", t("nameplate"), (row) => Number.parseFloat(row.memory_nameplate)),
      cell: (row) => row.memory_nameplate },
    figure("bandwidth", t("bandwidth"), (row) => row.bandwidth_bytes_per_s, per(GIGA)),
    figure("half", t("rate", { dtype: "bf16" }), halfRate, per(TERA), t("half.hint")),
    figure("fp8", t("rate", { dtype: "fp8" }), (row) => row.fp8_flops, per(TERA)),
    figure("fp32", t("rate", { dtype: "fp32" }), (row) => row.fp32_flops, per(TERA)),
    { key: "link", name: t("link"), value: (row) => row.link_bytes_per_s, down: true,
      cell: (row) => row.link ? `${row.link}, ${per(GIGA)(row.link_bytes_per_s)} GB/s`
        : row.pcie_generation ? `PCIe ${row.pcie_generation}` : "" },
    figure("power", t("power"), (row) => row.tdp_w, (value) => `${value.toLocaleString("en-US")} W`),
    { key: "ask", name: t("ask.about"), cell: ({ name }) => askingLinks(name, t) },
  ];
}

function specs(rows, t) {
  return [
    { name: "query", label: t("search.rows"), placeholder: "h100, ada, 24 GB", kind: "wide" },
    { name: "vendor", label: t("vendor"), any: t("any"), choices: choicesOf(rows, ({ vendor }) => vendor) },
    { name: "memory", label: t("least.memory"), placeholder: "40", inputmode: "decimal" },
  ];
}

export const show = catalogue({
  page: "gpus",
  path: "/api/gpus",
  sort: { key: "bandwidth", down: true },
  command: "vramcast gpus",
  rowsOf: ({ gpus }) => gpus,
  text: ({ name, product, vendor, arch, memory_nameplate: plate }) => `${name} ${product} ${vendor} ${arch} ${plate}`,
  columns,
  specs,
  kept: ({ vendor, memory }) => (row) =>
    (!vendor || row.vendor === vendor) && !(row.visible_bytes < GIB * Number.parseFloat(memory)),
});
