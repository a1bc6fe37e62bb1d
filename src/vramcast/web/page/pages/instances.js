/** Machines for rent, with their prices and the days those are of. */

import { h } from "../dom.js";
import { bytes, money } from "../format.js";
import { cardText } from "../names.js";
import { askingLinks, catalogue, choicesOf } from "./catalogue.js";

const provider = ({ name }) => name.split(":")[0];
const FIRST = ["USD", "EUR", "CNY"]; // currencies are not converted: prices are sorted within each
/** Cards of a machine; some hold a part of one. */
const cards = ({ gpus, slices_of_a_card: parts }) => (parts ? 1 / parts : gpus);
const speed = (value) => (value === undefined ? "" : `${Math.round((8 * value) / 1e9).toLocaleString("en-US")} Gb/s`);

/** A column of prices, those of one currency together. */
function priced(key, name, by, t) {
  const each = (row) => row.price.per_hour / by(row);
  const value = (row) => row.price && 1e6 * ((FIRST.indexOf(row.price.currency) + 4) % 4) + each(row);
  return { key, name, number: true, hint: t("currency.hint"), value,
    cell: (row) => row.price ? money(each(row), row.price.currency) : "" };
}

function dated(price, t) {
  if (!price) return h("span", { class: "soft" }, t("no.price"));
  return [price.date, h("small", {}, ` ${price.tariff}, ${price.region}`)];
}

function columns(t) {
  const figure = (key, name, value, show) => ({
    key, name, number: true, down: true, value, cell: (row) => (value(row) === undefined ? "" : show(value(row), row)),
  });
  return [
    { key: "name", name: t("instance"), value: ({ name }) => name },
    { key: "gpu", name: t("gpu"), value: ({ gpu }) => cardText(gpu) },
    figure("gpus", t("cards"), cards, (value, { slices_of_a_card: parts }) => (parts ? `1/${parts}` : value)),
    figure("memory", t("usable.memory"), ({ visible_bytes: size }) => size, (value) => bytes(value, 1)),
    priced("price", t("hourly"), () => 1, t),
    priced("card", t("hourly.card"), cards, t),
    { key: "date", name: t("priced"), down: true, value: ({ price }) => price?.date,
      cell: ({ price }) => dated(price, t) },
    { key: "ask", name: t("ask.about"), cell: ({ name }) => askingLinks(name, t) },
    figure("network", t("network"), ({ network_bytes_per_s: rate }) => rate, speed),
    figure("host", t("host.ram"), ({ host_bytes: size }) => size, (value) => bytes(value, 0)),
  ];
}

function specs(rows, t) {
  return [
    { name: "query", label: t("search.rows"), placeholder: "h100, p5, us-east-1", kind: "wide" },
    { name: "provider", label: t("provider"), any: t("any"), choices: choicesOf(rows, provider) },
    { name: "currency", label: t("currency"), any: t("any"), choices: choicesOf(rows, ({ price }) => price?.currency) },
  ];
}

export const show = catalogue({
  page: "instances",
  path: "/api/instances",
  sort: { key: "card", down: false },
  command: "vramcast instances",
  rowsOf: ({ instances }) => instances,
  text: ({ name, gpu, price, link }) => `${name} ${gpu} ${link} ${price?.region ?? ""} ${price?.tariff ?? ""}`,
  columns,
  specs,
  kept: (values) => (row) =>
    (!values.provider || provider(row) === values.provider)
      && (!values.currency || row.price?.currency === values.currency),
});
