// What the join decided: a lane for each kind over the batches, and the decisions one by one with their numbers.

import { el, refill, svg } from "./dom.js";
import { clock, moment, number, plural } from "./format.js";

const BINS = 160, SHOWN = 40, TALL = 24;

const words = (kind) => kind.replaceAll("_", " ").replace(/^md /, "memory–disk ").replace(/^dd /, "disk–disk ");
const batches = ([from, to]) => (from === to ? `batch ${number(from)}` : `batches ${number(from)} to ${number(to)}`);

function binned(series, counts) {
  const size = Math.max(1, Math.ceil(series.batch.length / BINS)), bins = [];
  for (let at = 0; at < counts.length; at += size) {
    const end = Math.min(at + size, counts.length) - 1;
    bins.push({ range: [series.batch[at], series.batch[end]], time: series.time[at], count: counts.slice(at, end + 1).reduce((sum, one) => sum + one, 0) });
  }
  return bins;
}

// What happened to the runs, as shares of the way along the batches.
function marks(join) {
  const { batch, time } = join.series;
  const place = (found) => (found < 0 ? batch.length : found) / batch.length;
  return [
    ...join.restarts.map((one) => ({ css: "restart", place: place(batch.indexOf(one.batch)), text: `Restart before batch ${one.batch}, ${moment(one.time)}` })),
    ...join.failures.map((one) => ({ css: "failure", place: place(time.findIndex((at) => at >= one.time)), text: `Failure, ${moment(one.time)}: ${one.message}` })),
  ];
}

function laneOf({ label, kind, counts, css, unit }, series, happened, range) {
  const bins = binned(series, counts), most = Math.max(...bins.map((bin) => bin.count)), total = counts.reduce((sum, one) => sum + one, 0);
  const amount = unit ? plural(total, unit) : total === 1 ? "once" : `${number(total)} times`;
  const bars = bins.map(({ range: [from, to], time, count }, at) => {
    if (!count) return null;
    const tall = 4 + (TALL - 4) * Math.sqrt(count / most);
    const there = !range || (from <= range[1] && to >= range[0]);
    return svg("rect", { class: there ? "bin" : "bin apart", fill: css, x: at + 0.05, y: TALL - tall, width: 0.9, height: tall, "data-from": from, "data-to": to, "data-kind": kind },
      svg("title", {}, `${label}: ${number(count)} in ${batches([from, to])}, ${clock(time)}`));
  });
  const lines = happened.map((one) => svg("line", { class: one.css, x1: one.place * bins.length, x2: one.place * bins.length, y1: 0, y2: TALL }, svg("title", {}, one.text)));
  return el("div", { class: "lane-row" },
    el("div", { class: "lane-name" }, el("b", {}, label), " ", el("span", {}, amount)),
    svg("svg", { class: "bars", viewBox: `0 0 ${bins.length} ${TALL}`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${amount}` }, bars, lines));
}

function timeline(join, range) {
  const s = join.series;
  const lanes = [
    ...Object.entries(s.events).map(([kind, counts]) => ({ label: words(kind), kind, counts, css: "var(--decide)" })),
    ...Object.entries(s.left).map(([name, counts]) => {
      const [, input, reason] = name.split(".");
      return { label: `${input}: ${reason.replaceAll("_", " ")}`, kind: null, counts, css: "var(--leave)", unit: "row" };
    }),
  ].filter((lane) => lane.counts.some((count) => count));
  if (!lanes.length) return el("p", { class: "calm" }, "No decision so far: all rows fit, and none has left.");
  const happened = marks(join), last = s.batch.length - 1;
  const times = [...new Set([0, Math.floor(last / 2), last])];
  return [
    ...lanes.map((lane) => laneOf(lane, s, happened, range)),
    el("div", { class: "lane-row axis" }, el("span", {}), el("div", { class: "ticks" }, times.map((at) => el("span", {}, `batch ${number(s.batch[at])}, ${clock(s.time[at])}`)))),
    el("p", { class: "legend" },
      [["var(--decide)", "decisions"], ["var(--leave)", "rows that left"]].filter(([css]) => lanes.some((lane) => lane.css === css)).map(([css, text]) => el("span", {}, el("i", { vars: { "--key": css } }), text)),
      ["restart", "failure"].filter((css) => happened.some((one) => one.css === css)).map((css) => el("span", {}, el("i", { class: `upright ${css}` }), css))),
  ];
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
    this.most = SHOWN;
    this.drawn = el("div", { class: "timeline", role: "group", "aria-label": "Timeline of decisions", onclick: (event) => this.pick(event.target.closest("[data-from]")) });
    this.filters = el("div", { class: "chips", role: "group", "aria-label": "Kinds of decisions", onclick: (event) => this.filter(event.target.closest("button")) });
    this.count = el("p", { class: "hint", role: "status" });
    this.list = el("div", { class: "decided" });
    this.more = el("button", { type: "button", class: "chip", onclick: () => { this.most *= 4; this.fill(true); } }, "Show more");
    this.seen = "";
    this.node = el("div", { class: "view" },
      el("section", { class: "card" }, el("h2", {}, "Timeline"), el("p", { class: "hint" }, "Click a bar to see what was decided there."), this.drawn),
      el("section", { class: "card" }, el("h2", {}, "One by one"), this.filters, this.count, this.list, this.more));
  }

  get kinds() { return new Set(this.app.wanted.kind); }

  pick(bar) {
    if (!bar) return;
    const { from, to, kind } = bar.dataset;
    this.app.go({ batch: from === to ? from : `${from}-${to}`, kind: kind ? [kind] : [] });
    this.filters.scrollIntoView({ block: "nearest" });
  }

  filter(button) {
    if (!button) return;
    const { kind } = button.dataset, kinds = this.kinds;
    if (!kind) this.app.go({ kind: [], batch: null });
    else this.app.go({ kind: kinds.has(kind) ? [...kinds].filter((one) => one !== kind) : [...kinds, kind] });
  }

  render(join) {
    this.join = join;
    refill(this.drawn, timeline(join, this.app.range));
    this.fill(false);
  }

  fill(force) {
    const { decisions } = this.join, { range } = this.app, kinds = this.kinds;
    const state = `${decisions.length} ${decisions.at(-1)?.batch} ${range} ${[...kinds]}`;
    if (!force && state === this.seen) return;
    this.seen = state;
    const all = [...new Set([...decisions.map((one) => one.kind), ...kinds])].sort();
    refill(this.filters, all.map((kind) => el("button", { type: "button", class: "chip", "data-kind": kind, "aria-pressed": String(kinds.has(kind)) }, words(kind))),
      range || kinds.size ? el("button", { type: "button", class: "chip plain" }, "Show all") : null);
    const wanted = decisions.filter((one) => (!kinds.size || kinds.has(one.kind)) && (!range || (one.batch >= range[0] && one.batch <= range[1])));
    this.count.textContent = [
      wanted.length ? plural(wanted.length, "decision") : decisions.length ? "None of these among the newest decisions" : "No decision so far",
      range ? batches(range) : null,
      wanted.length > this.most ? `the newest ${this.most} of them here` : null].filter(Boolean).join(", ");
    this.more.hidden = wanted.length <= this.most;
    this.group(wanted.slice(-this.most).reverse(), range);
  }

  // By batch, the newest first. Whoever reads a decision keeps it open, and the focus on it.
  group(newest, range) {
    const open = new Set([...this.list.querySelectorAll("details[open]")].map((one) => one.dataset.id));
    const focused = this.list.contains(document.activeElement) ? document.activeElement.closest("details")?.dataset.id : null;
    const groups = [];
    for (const one of newest) {
      if (groups.at(-1)?.batch !== one.batch) groups.push({ batch: one.batch, time: one.time, items: [] });
      const id = `${one.batch}/${one.partition}/${one.sentence}`;
      groups.at(-1).items.push(el("li", {}, el("details", { "data-id": id, open: open.has(id) },
        el("summary", {}, el("span", { class: "kind" }, words(one.kind)), el("span", { class: "sentence" }, one.sentence),
          this.join.partitions > 1 ? el("span", { class: "where" }, `partition ${one.partition}`) : null),
        el("dl", {}, [["partition", one.partition], ["time", moment(one.time)], ...Object.entries(one.numbers)].map(([name, value]) =>
          [el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, typeof value === "string" ? value : shown(value))])))));
    }
    this.list.replaceChildren(...groups.flatMap(({ batch, time, items }) => [
      el("h3", {}, `Batch ${number(batch)}`, el("span", { class: "where" }, clock(time)), range ? null : el("a", { href: this.app.address({ batch }), "aria-label": `Only batch ${number(batch)}` }, "only this")),
      el("ol", { class: "decisions" }, items)]));
    if (focused) [...this.list.querySelectorAll("details")].find((one) => one.dataset.id === focused)?.querySelector("summary").focus();
  }
}
