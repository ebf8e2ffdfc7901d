// What the join decided: a lane for each kind over the batches, and the decisions one by one with their numbers.

import { el, svg } from "./dom.js";
import { clock, moment, number, plural } from "./format.js";

const BINS = 160, SHOWN = 40, LENGTH = 1000, LANE = 34;

const words = (kind) => kind.replaceAll("_", " ").replace(/^md /, "memory–disk ").replace(/^dd /, "disk–disk ");

function binned(series, counts) {
  const size = Math.max(1, Math.ceil(series.batch.length / BINS)), bins = [];
  for (let at = 0; at < counts.length; at += size) {
    const end = Math.min(at + size, counts.length) - 1;
    bins.push({ from: series.batch[at], to: series.batch[end], time: series.time[at], count: counts.slice(at, end + 1).reduce((sum, one) => sum + one, 0) });
  }
  return bins;
}

function timeline(join, onpick) {
  const s = join.series;
  const lanes = [
    ...Object.entries(s.events).map(([kind, counts]) => ({ label: words(kind), kind, counts, css: "var(--decide)" })),
    ...Object.entries(s.left).map(([name, counts]) => {
      const [, input, reason] = name.split(".");
      return { label: `${input}: ${reason.replaceAll("_", " ")}`, kind: null, counts, css: "var(--leave)", unit: "row" };
    }),
  ].filter((lane) => lane.counts.some((count) => count));
  if (!lanes.length) return el("p", { class: "calm" }, "No decision so far: all rows fit, and none has left.");
  const height = lanes.length * LANE + 22, room = LENGTH - 210;
  const marks = [];
  lanes.forEach((lane, row) => {
    const bins = binned(s, lane.counts), most = Math.max(...bins.map((bin) => bin.count)), width = room / bins.length;
    const total = lane.counts.reduce((sum, one) => sum + one, 0), y = row * LANE + 4;
    marks.push(svg("text", { class: "name", x: 0, y: y + 13 }, lane.label.length > 26 ? `${lane.label.slice(0, 25)}…` : lane.label, svg("title", {}, lane.label)),
      svg("text", { class: "fact", x: 0, y: y + 26 }, lane.unit ? plural(total, lane.unit) : total === 1 ? "once" : `${number(total)} times`),
      svg("line", { class: "hair", x1: 210, x2: LENGTH, y1: y + LANE - 6, y2: y + LANE - 6 }));
    bins.forEach((bin, at) => {
      if (!bin.count) return;
      const tall = 4 + (LANE - 12) * Math.sqrt(bin.count / most);
      const text = `${lane.label}: ${number(bin.count)} in ${bin.from === bin.to ? `batch ${bin.from}` : `batches ${bin.from} to ${bin.to}`}, ${clock(bin.time)}`;
      marks.push(svg("rect", { class: "bin", fill: lane.css, x: 210 + at * width, y: y + LANE - 6 - tall, width: Math.max(width - 0.8, 1.2), height: tall, rx: 1.2,
        onclick: () => onpick(bin.from, bin.to, lane.kind) }, svg("title", {}, text)));
    });
  });
  const bins = s.batch.length;
  const place = (batch) => 210 + room * (s.batch.findIndex((one) => one >= batch) / Math.max(bins, 1));
  for (const restart of join.restarts) {
    marks.push(svg("line", { class: "restart", x1: place(restart.batch), x2: place(restart.batch), y1: 0, y2: height - 20 }, svg("title", {}, `Restart before batch ${restart.batch}, ${moment(restart.time)}`)));
  }
  for (const at of [0, Math.floor((bins - 1) / 2), bins - 1]) {
    const anchor = at === 0 ? "start" : at === bins - 1 ? "end" : "middle";
    marks.push(svg("text", { class: "fact", "text-anchor": anchor, x: 210 + (room * (at + (at ? 1 : 0))) / Math.max(bins, 1), y: height - 4 }, `batch ${number(s.batch[at])}, ${clock(s.time[at])}`));
  }
  return el("div", { class: "scroll wide", tabindex: "0", role: "region", "aria-label": "Timeline of decisions" },
    svg("svg", { class: "timeline", viewBox: `0 0 ${LENGTH} ${height}`, role: "img",
      "aria-label": `Timeline: ${lanes.map((lane) => `${lane.label} ${number(lane.counts.reduce((sum, one) => sum + one, 0))}`).join(", ")}` }, marks));
}

function shown(value) {
  if (value === null) return "none";
  if (typeof value === "number") return number(value);
  if (Array.isArray(value)) return value.map(shown).join(", ");
  if (typeof value === "object") return Object.entries(value).map(([name, inner]) => `${name} ${shown(inner)}`).join(", ");
  return String(value);
}

export class Decisions {
  constructor(app) {
    this.app = app;
    this.kinds = new Set();
    this.range = null;
    this.most = SHOWN;
    this.drawn = el("div", {});
    this.filters = el("div", { class: "chips", role: "group", "aria-label": "Kinds of decisions" });
    this.count = el("p", { class: "hint", role: "status" });
    this.list = el("ol", { class: "decisions" });
    this.more = el("button", { type: "button", class: "chip", onclick: () => { this.most *= 4; this.fill(true); } }, "Show more");
    this.seen = "";
    this.node = el("div", { class: "view" },
      el("section", { class: "card" }, el("h2", {}, "Timeline"), el("p", { class: "hint" }, "Decisions, and rows that left by reason. Click a bar to see what was decided there."), this.drawn),
      el("section", { class: "card" }, el("h2", {}, "One by one"), this.filters, this.count, this.list, this.more));
  }

  render(join, at) {
    this.join = join;
    if (at >= 0 && !this.range) this.range = [join.series.batch[at], join.series.batch[at]];
    this.drawn.replaceChildren(timeline(join, (from, to, kind) => {
      this.range = [from, to];
      if (kind) this.kinds = new Set([kind]);
      this.fill(true);
      this.list.scrollIntoView({ block: "nearest" });
    }));
    this.fill(false);
  }

  fill(force) {
    const { decisions } = this.join;
    const state = `${decisions.length} ${decisions.at(-1)?.batch} ${this.range} ${[...this.kinds]}`;
    if (!force && state === this.seen) return; // whoever reads a decision keeps it open
    this.seen = state;
    const all = [...new Set(decisions.map((one) => one.kind))].sort();
    this.filters.replaceChildren(...all.map((kind) => el("button", { type: "button", class: "chip", "aria-pressed": String(this.kinds.has(kind)),
      onclick: () => { this.kinds.has(kind) ? this.kinds.delete(kind) : this.kinds.add(kind); this.fill(true); } }, words(kind))),
    this.range || this.kinds.size ? el("button", { type: "button", class: "chip plain", onclick: () => { this.range = null; this.kinds.clear(); this.fill(true); } }, "Show all") : "");
    const wanted = decisions.filter((one) => (!this.kinds.size || this.kinds.has(one.kind)) && (!this.range || (one.batch >= this.range[0] && one.batch <= this.range[1])));
    const newest = wanted.slice(-this.most).reverse();
    this.count.textContent = wanted.length ? `${plural(wanted.length, "decision")}${wanted.length > this.most ? `, the newest ${this.most} of them here` : ""}${this.range ? `, ${this.range[0] === this.range[1] ? `batch ${this.range[0]}` : `batches ${this.range[0]} to ${this.range[1]}`}` : ""}`
      : decisions.length ? "None of these among the newest decisions." : "No decision so far.";
    this.more.hidden = wanted.length <= this.most;
    const open = new Set([...this.list.querySelectorAll("details[open]")].map((one) => one.dataset.id));
    this.list.replaceChildren(...newest.map((one) => {
      const id = `${one.batch}/${one.partition}/${one.sentence}`;
      return el("li", {}, el("details", { "data-id": id, open: open.has(id) },
        el("summary", {}, el("span", { class: "kind" }, words(one.kind)), el("span", { class: "sentence" }, one.sentence), el("span", { class: "where" }, `batch ${number(one.batch)} · ${clock(one.time)}`)),
        el("dl", {}, [["partition", one.partition], ["time", moment(one.time)], ...Object.entries(one.numbers)].map(([name, value]) =>
          [el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, typeof value === "string" ? value : shown(value))]))));
    }));
  }
}
