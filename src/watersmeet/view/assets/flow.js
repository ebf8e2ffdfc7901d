// The join drawn: inputs, partitions with what they hold, results. Bands are as wide as the flow.

import { el, refill, svg, table } from "./dom.js";
import { bytes, duration, number, percent, plural, short } from "./format.js";
import { streamColor } from "./charts.js";

const WIDTH = 1000, MOST = 10;
const LEFT = { x: 0, width: 150 }, MIDDLE = { x: 380, width: 300 }, RIGHT = { x: 860, width: 140 };

// The partitions to draw: the fullest, and the rest as one.
function chosen(join) {
  const total = (part) => Object.values(part.rows).reduce((sum, rows) => sum + rows, 0);
  const parts = join.partition_list.map((part) => ({ ...part, label: `partition ${part.number}`, total: total(part) }));
  if (parts.length <= MOST) return parts;
  const sorted = [...parts].sort((a, b) => b.total - a.total);
  const rest = sorted.slice(MOST - 1);
  const sum = (pick) => rest.reduce((all, part) => all + pick(part), 0);
  const names = join.inputs.map((one) => one.name);
  return [...sorted.slice(0, MOST - 1), {
    label: `${rest.length} others`, number: null, results: sum((part) => part.results), total: sum((part) => part.total),
    rows: Object.fromEntries(names.map((name) => [name, sum((part) => part.rows[name])])),
    held: Object.fromEntries(names.map((name) => [name, Object.fromEntries(["rows", "resident_bytes", "spilled_bytes", "spilled_rows"].map(
      (what) => [what, sum((part) => part.held[name][what])]))])),
    seconds: sum((part) => part.seconds),
  }];
}

function band(x1, y1, x2, y2, width1, width2, fill, title) {
  const bend = (x1 + x2) / 2;
  return svg("path", { class: "band", fill,
    d: `M${x1} ${y1}C${bend} ${y1} ${bend} ${y2} ${x2} ${y2}V${y2 + width2}C${bend} ${y2 + width2} ${bend} ${y1 + width1} ${x1} ${y1 + width1}Z` },
  svg("title", {}, title));
}

// The middles of boxes that stand one below the other, around the middle of the picture.
function stacked(talls, gap, middle) {
  let reached = middle - talls.reduce((sum, tall) => sum + tall + gap, -gap) / 2;
  return talls.map((tall) => { reached += tall + gap; return reached - gap - tall / 2; });
}

function drawing(join) {
  const parts = chosen(join), inputs = join.inputs;
  const rows = inputs.map((one) => parts.reduce((sum, part) => sum + part.rows[one.name], 0));
  const allRows = rows.reduce((sum, count) => sum + count, 0), results = parts.reduce((sum, part) => sum + part.results, 0);
  const least = 30 + 11 * inputs.length, gap = 10, top = 30;
  const scale = (parts.length > 4 ? 340 : 240) / Math.max(allRows, 1);
  const talls = parts.map((part) => Math.max(least, part.total * scale + 8));
  const tallsIn = rows.map((count) => Math.max(66, count * scale + 8));
  const shrunk = Math.max(1, results / Math.max(allRows, 1));
  const scaleOut = scale / shrunk;
  const tallOut = Math.max(66, results * scaleOut + 8);
  const height = top + 10 + Math.max(tallOut, ...[talls, tallsIn].map((all) => all.reduce((sum, tall) => sum + tall + gap, -gap)));
  const middleY = top + (height - top - 10) / 2;
  const held = Math.max(1, ...parts.map((part) => inputs.reduce((sum, one) => sum + part.held[one.name].resident_bytes + part.held[one.name].spilled_bytes, 0)));
  const bands = [], boxes = [], texts = [];
  const centres = stacked(talls, gap, middleY), centresIn = stacked(tallsIn, gap, middleY);
  const centre = (at) => centres[at];

  // inputs
  const startY = inputs.map((_, at) => centresIn[at] - (rows[at] * scale) / 2);
  const used = inputs.map(() => 0);
  const partUsed = parts.map((part) => -(part.total * scale) / 2);
  inputs.forEach((one, at) => {
    const y = centresIn[at], tall = tallsIn[at];
    boxes.push(svg("rect", { class: "node", x: LEFT.x, y: y - tall / 2, width: LEFT.width, height: tall, rx: 10 }),
      svg("rect", { fill: streamColor(at), x: LEFT.x, y: y - tall / 2 + 10, width: 5, height: tall - 20, rx: 2.5 }));
    texts.push(svg("text", { class: "name", x: LEFT.x + 18, y: y - 8 }, one.name.length > 17 ? `${one.name.slice(0, 16)}…` : one.name, svg("title", {}, one.name)),
      svg("text", { class: "fact", x: LEFT.x + 18, y: y + 10 }, `${short(one.rows)} rows`),
      svg("text", { class: "fact", x: LEFT.x + 18, y: y + 25 }, one.ended ? "ended" : `${short(one.rate)} rows/s`));
    parts.forEach((part, k) => {
      const width = part.rows[one.name] * scale;
      if (width <= 0) return;
      const drawn = Math.max(width, 0.8);
      bands.push(band(LEFT.x + LEFT.width, startY[at] + used[at], MIDDLE.x, centre(k) + partUsed[k], drawn, drawn, streamColor(at),
        `${one.name} to ${part.label}: ${number(part.rows[one.name])} rows`));
      used[at] += width;
      partUsed[k] += width;
    });
  });

  // results
  let out = middleY - (results * scaleOut) / 2;
  boxes.push(svg("rect", { class: "node", x: RIGHT.x, y: middleY - tallOut / 2, width: RIGHT.width, height: tallOut, rx: 10 }),
    svg("rect", { fill: "var(--results)", x: RIGHT.x + RIGHT.width - 5, y: middleY - tallOut / 2 + 10, width: 5, height: tallOut - 20, rx: 2.5 }));
  texts.push(svg("text", { class: "name", x: RIGHT.x + 14, y: middleY - 8 }, "results"),
    svg("text", { class: "fact", x: RIGHT.x + 14, y: middleY + 10 }, `${short(results)} rows`),
    svg("text", { class: "fact", x: RIGHT.x + 14, y: middleY + 25 }, `${short(join.results.rate)} rows/s`));
  parts.forEach((part, k) => {
    const width = part.results * scaleOut;
    if (width <= 0) return;
    bands.push(band(MIDDLE.x + MIDDLE.width, centre(k) - width / 2, RIGHT.x, out, Math.max(width, 0.8), Math.max(width, 0.8), "var(--results)",
      `${part.label}: ${number(part.results)} results`));
    out += width;
  });

  // partitions, with what they hold
  parts.forEach((part, k) => {
    const y = centre(k), tall = talls[k], head = y - Math.min(tall, least) / 2; // what is written stands in the middle
    boxes.push(svg("rect", { class: "node", x: MIDDLE.x, y: y - tall / 2, width: MIDDLE.width, height: tall, rx: 8 }));
    texts.push(svg("text", { class: "name", x: MIDDLE.x + 12, y: head + 17 }, part.label),
      svg("text", { class: "fact end", x: MIDDLE.x + MIDDLE.width - 12, y: head + 17 }, `${percent(part.total / Math.max(allRows, 1))} of rows`));
    const wide = MIDDLE.width - 24, each = 8;
    inputs.forEach((one, at) => {
      const there = part.held[one.name], barY = head + 25 + at * (each + 3);
      const memory = (there.resident_bytes / held) * wide, disk = (there.spilled_bytes / held) * wide;
      boxes.push(svg("g", {}, svg("title", {}, `${one.name}: ${number(there.rows)} rows held, ${bytes(there.resident_bytes)} in memory, ${bytes(there.spilled_bytes)} on disk`),
        svg("rect", { class: "track", x: MIDDLE.x + 12, y: barY, width: wide, height: each, rx: each / 2 }),
        svg("rect", { fill: streamColor(at), x: MIDDLE.x + 12, y: barY, width: memory, height: each, rx: Math.min(each / 2, memory / 2) }),
        svg("rect", { class: "on-disk", fill: streamColor(at), x: MIDDLE.x + 12 + memory, y: barY, width: disk, height: each, rx: Math.min(each / 2, disk / 2) })));
    });
  });
  texts.push(svg("text", { class: "head", x: LEFT.x, y: 14 }, "Inputs"), svg("text", { class: "head", x: MIDDLE.x, y: 14 }, "Partitions and what they hold"),
    svg("text", { class: "head", x: RIGHT.x, y: 14 }, "Out"));
  const words = `${inputs.map((one, at) => `${one.name} ${number(rows[at])} rows`).join(", ")} into ${plural(join.partition_list.length, "partition")}, ${number(results)} results. The fullest partition has ${percent(Math.max(...parts.map((part) => part.total)) / Math.max(allRows, 1))} of the rows.`;
  return { words, shrunk, node: svg("svg", { class: "flow", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": words }, bands, boxes, texts) };
}

export class Flow {
  constructor() {
    this.picture = el("div", {});
    this.list = el("div", {});
    this.node = el("div", { class: "view" },
      el("section", { class: "card" }, el("h2", {}, "The join"), this.picture),
      el("section", { class: "card" }, el("h2", {}, "Partitions"), this.list));
  }

  render(join) {
    const { node, words, shrunk } = drawing(join);
    refill(this.picture,
      el("p", { class: "hint" }, words),
      el("div", { class: "scroll wide", tabindex: "0", role: "region", "aria-label": "The join drawn" }, node),
      el("p", { class: "legend" }, el("span", {}, el("i", { class: "solid" }), "in memory"), el("span", {}, el("i", { class: "solid faint" }), "on disk"),
        el("span", {}, shrunk >= 2 ? `Bands are as wide as the flow; results are drawn ${short(shrunk)} times thinner.` : "Bands are as wide as the flow.")));
    const names = join.inputs.map((one) => one.name);
    const all = join.partition_list.reduce((sum, part) => sum + names.reduce((inner, name) => inner + part.rows[name], 0), 0);
    refill(this.list, table("Partitions", ["Partition", "Share of rows", ...names, "Results", "Held rows", "In memory", "On disk", "Time in the join"],
      join.partition_list.map((part) => {
        const sum = (pick) => names.reduce((inner, name) => inner + pick(name), 0);
        const rows = sum((name) => part.rows[name]);
        return [String(part.number), percent(rows / Math.max(all, 1)), ...names.map((name) => number(part.rows[name])), number(part.results),
          number(sum((name) => part.held[name].rows)), bytes(sum((name) => part.held[name].resident_bytes)), bytes(sum((name) => part.held[name].spilled_bytes)), duration(part.seconds)];
      }), { numeric: names.map((_, at) => at + 2).concat([1, 2, 3, 4, 5, 6, 7].map((at) => at + names.length)).concat([1]) }));
  }
}
