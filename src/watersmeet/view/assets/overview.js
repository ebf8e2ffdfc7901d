// The first look: what is wrong, the golden signals, and how they went.

import { el, figure, prose, refill, table } from "./dom.js";
import { bytes, clock, duration, moment, number, percent, plural, short } from "./format.js";
import { Lane, rates, streamColor } from "./charts.js";

export function troubleCards(troubles, address) {
  if (!troubles.length) {
    return el("p", { class: "calm" }, el("span", { "aria-hidden": "true" }, "✓"), " Nothing looks wrong.");
  }
  const names = { bad: "Trouble", warning: "Warning", note: "Note" };
  return el("ul", { class: "troubles" }, troubles.map((one) =>
    el("li", { class: `trouble ${one.level}`, "data-trouble": one.id },
      el("p", { class: "level" }, names[one.level]),
      el("h3", {}, one.title),
      el("p", {}, prose(one.sentence)),
      el("p", { class: "advice" }, prose(one.advice), " ", one.view === "overview" ? null : el("a", { href: address({ view: one.view }) }, "Show")))));
}

function tile(label, main, ...rest) {
  return el("section", { class: "tile", "aria-label": label }, el("h3", {}, label), el("p", { class: "main" }, main), rest);
}

function flowTile(join) {
  const total = join.inputs.reduce((sum, one) => sum + one.rate, 0);
  const word = join.status === "running" ? "rows/s now" : "rows/s on average";
  return tile("Rows in", [short(total), el("small", {}, ` ${word}`)],
    el("ul", { class: "facts" }, join.inputs.map((one, at) => el("li", {},
      el("i", { vars: { "--key": streamColor(at) } }), el("span", {}, one.name), el("small", {}, `${short(one.rate)}/s`),
      el("b", {}, figure(`rows.${one.internal}`, one.rows, number(one.rows)))))));
}

function resultTile(join) {
  const rows = join.inputs.reduce((sum, one) => sum + one.rows, 0);
  const fan = join.keys.fan_out;
  return tile("Results", [short(join.results.rate), el("small", {}, join.status === "running" ? " results/s now" : " results/s on average")],
    el("ul", { class: "facts" },
      el("li", {}, el("i", { vars: { "--key": "var(--results)" } }), el("span", {}, join.counted_from ? `since batch ${number(join.counted_from)}` : "so far"), el("b", {}, figure("results", join.results.rows, number(join.results.rows)))),
      el("li", {}, el("span", {}, "per row"), el("b", {}, rows ? number(join.results.rows / rows) : "–")),
      fan ? el("li", {}, el("span", {}, "per key, p99"), el("b", {}, short(fan.p99))) : null));
}

function delayTile(join) {
  const { delay } = join, waits = delay.waits;
  const waiting = join.inputs.reduce((sum, one) => sum + one.waiting_rows, 0);
  const whole = delay.batch_seconds ?? null;
  return tile("Delay", [duration(whole ?? delay.join_seconds), el("small", {}, whole === null ? " newest, in the join" : " newest batch")],
    el("ul", { class: "facts" },
      el("li", {}, el("span", {}, whole === null ? "median" : "in the join"), el("b", {}, figure("join_seconds", delay.median, duration(delay.median)))),
      el("li", {}, el("span", {}, whole === null ? "p95" : "in the join, p95"), el("b", {}, duration(delay.p95))),
      waits && waits.p95 !== null ? el("li", {}, el("span", {}, "rows wait, p95"), el("b", {}, plural(waits.p95, "batch"))) : null,
      Object.entries(delay.held ?? {}).map(([name, held]) => el("li", {}, el("span", {}, `oldest row of ${name}`), el("b", {}, figure(`held_for.${name}`, held, duration(held))))),
      waiting ? el("li", {}, el("span", {}, "rows waiting"), el("b", {}, number(waiting))) : null));
}

function stateTile(join) {
  const { state } = join, total = state.resident_bytes + state.spilled_bytes;
  const full = Math.max(state.budget ?? 0, total, 1);
  const share = (size) => `${(100 * size) / full}%`;
  return tile("State", [bytes(total), state.budget ? el("small", {}, ` · budget ${bytes(state.budget)}`) : null],
    !state.budget ? null : el("div", { class: "gauge", role: "img", "aria-label": `${bytes(state.resident_bytes)} in memory, ${bytes(state.spilled_bytes)} on disk` },
      el("span", { class: "memory", vars: { "--share": share(state.resident_bytes) } }),
      el("span", { class: "disk", vars: { "--share": share(state.spilled_bytes) } }),
      el("span", { class: "limit", vars: { "--share": share(state.budget) } })),
    el("ul", { class: "facts" },
      el("li", {}, el("i", { vars: { "--key": "var(--memory)" } }), el("span", {}, "in memory"), el("b", {}, figure("resident_bytes", state.resident_bytes, bytes(state.resident_bytes)))),
      el("li", {}, el("i", { class: "hatched" }), el("span", {}, "on disk"), el("b", {}, figure("spilled_bytes", state.spilled_bytes, bytes(state.spilled_bytes)))),
      el("li", {}, el("span", {}, "rows held"), el("b", {}, figure("state_rows", state.rows, number(state.rows))))),
    el("p", { class: "bound" }, state.bound_text, state.projection && state.unbounded ? `: ${state.projection}` : "", "."));
}

function situation(one, join) {
  if (one.ended) return "ended";
  if (join.status !== "running") return "open";
  const since = (join.now - join.newest_time) / 1e6;
  if (one.silent_seconds >= 10) return `silent for ${duration(one.silent_seconds)}`;
  return since >= 10 ? `no batch for ${duration(since)}` : one.rows ? "flowing" : "waiting";
}

function inputTable(join) {
  const clocks = join.inputs.some((one) => one.clock !== null);
  const backlogs = join.status === "running";
  const reasons = (left) => Object.entries(left).sort((a, b) => b[1] - a[1]).map(([name, rows]) => `${name.replaceAll("_", " ")} ${short(rows)}`).join(", ") || "–";
  const heads = ["Input", "Now", "Rows", "Held", "On disk", "Late", ...(clocks ? ["Its clock"] : []), ...(backlogs ? ["Backlog"] : []), "Left, by reason"];
  return table("Inputs", heads, join.inputs.map((one, at) => [
    [el("i", { class: "dot", vars: { "--key": streamColor(at) } }), one.name],
    situation(one, join),
    number(one.rows),
    figure(`held.${one.internal}`, one.held_rows, number(one.held_rows)),
    number(one.spilled_rows),
    figure(`late.${one.internal}`, one.late, number(one.late)),
    ...(clocks ? [one.clock ?? "–"] : []),
    ...(backlogs ? [one.ended ? "–" : one.backlog ?? el("span", { class: "quiet" }, "not known")] : []),
    reasons(one.left),
  ]), { numeric: [2, 3, 4, 5] });
}

// State directories do not know what waits at the sources.
function backlogHint(join) {
  if (join.status !== "running" || join.inputs.every((one) => one.ended || one.backlog)) return null;
  return el("p", { class: "hint below" }, "Backlog: what waits at a source is not in the state. ", el("code", {}, "watersmeet run --ui"),
    " shows it for folders of this machine and for Kafka.");
}

function choiceList(join) {
  return el("dl", { class: "choices" }, join.choices.map((one) => [
    el("dt", {}, `${one.what.replaceAll("_", " ")}: `, el("b", {}, one.value)), el("dd", {}, `because ${one.why}`)]));
}

export class Overview {
  constructor(app) {
    this.app = app;
    this.top = el("div", {});
    this.lanes = el("div", { class: "lanes" });
    this.inputs = el("div", {});
    this.chosen = el("section", { class: "card", "aria-label": "Chosen" });
    this.moment = el("div", {});
    this.slider = el("input", { type: "range", id: "moment", min: "0", oninput: () => this.slide() });
    this.at = el("output", { for: "moment" });
    this.newest = el("div", {});
    this.node = el("div", { class: "view" },
      el("h2", { class: "hidden" }, "Overview"), this.top,
      el("section", { class: "card" }, el("h2", {}, "Over time"), 
        el("div", { class: "hint moments" }, el("label", { for: "moment" }, "Click a moment in a curve, or move to it"), this.slider, this.at), this.moment, this.lanes),
      el("section", { class: "card" }, el("h2", {}, "Inputs"), this.inputs), this.chosen,
      el("details", { class: "card" }, el("summary", {}, "The newest batches as a table"), this.newest));
    this.charts = null;
  }

  build(join) {
    const onpick = (at) => this.app.go({ batch: this.app.join.series.batch[at] });
    const onhover = (at) => this.say(at ?? this.shown);
    const common = { onpick, onhover };
    this.charts = [
      ...join.inputs.map((one, at) => new Lane({ title: one.name, unit: "rows/s", format: short, ...common,
        curves: [{ label: one.name, color: streamColor(at), of: (s) => rates(s, s.rows[one.name]) }] })),
      new Lane({ title: "results", unit: "rows/s", format: short, ...common,
        curves: [{ label: "results", color: "var(--results)", of: (s) => rates(s, s.results) }] }),
      new Lane({ title: "time in the join", unit: "seconds", format: duration, ...common, step: false,
        curves: [{ label: "seconds", color: "var(--time)", of: (s) => s.seconds }] }),
      new Lane({ title: "state", unit: "bytes", format: bytes, ...common, axis: true, height: 120, step: false,
        line: join.state.budget ? { label: "budget", of: () => this.app.join.state.budget } : null,
        curves: [
          { label: "on disk", color: "var(--disk)", stacked: true, of: (s) => s.spilled },
          { label: "in memory", color: "var(--memory)", stacked: true, of: (s) => s.resident },
        ] }),
    ];
    this.lanes.replaceChildren(...this.charts.map((chart) => chart.node));
  }

  render(join, at) {
    refill(this.top,
      el("section", { "aria-label": "Troubles" }, troubleCards(join.troubles, this.app.address)),
      el("div", { class: "tiles" }, flowTile(join), resultTile(join), delayTile(join), stateTile(join)));
    if (!this.charts) this.build(join);
    for (const chart of this.charts) chart.update(join, at);
    refill(this.inputs, inputTable(join), backlogHint(join));
    this.chosen.hidden = !join.choices?.length;
    if (join.choices?.length) refill(this.chosen, el("h2", {}, "Chosen when the join was built"), choiceList(join));
    this.join = join;
    this.shown = at >= 0 ? at : join.series.batch.length - 1;
    this.slider.max = join.series.batch.length - 1;
    this.slider.value = this.shown;
    this.say(this.shown);
    refill(this.moment, this.app.range === null ? [] : at >= 0 ? this.kept(join, at) : this.gone());
    refill(this.newest, newestTable(join));
  }

  // The last place is now, whatever comes.
  slide() {
    const at = Number(this.slider.value), { batch } = this.join.series;
    this.app.go({ batch: at >= batch.length - 1 ? null : batch[at] }, { step: false });
  }

  say(at) {
    const { batch, time } = this.join.series;
    this.at.textContent = `batch ${number(batch[at])}, ${clock(time[at])}`;
    this.slider.setAttribute("aria-valuetext", this.at.textContent);
  }

  gone() {
    return el("div", { class: "moment" }, `Batch ${number(this.app.range[0])} is not among the batches shown. `, el("a", { href: this.app.address({ batch: null }) }, "Back to now"));
  }

  kept(join, at) {
    const s = join.series;
    const events = Object.entries(s.events).filter(([, counts]) => counts[at]).map(([kind, counts]) => `${kind.replaceAll("_", " ")} ×${counts[at]}`);
    return el("div", { class: "moment" },
      el("strong", {}, `Batch ${number(s.batch[at])}`), ` at ${moment(s.time[at])}: `,
      [...join.inputs.map((one) => `${number(s.rows[one.name][at])} rows of ${one.name}`), `${number(s.results[at])} results`, duration(s.seconds[at]),
        `${bytes(s.resident[at] + s.spilled[at])} held`, ...events].join(", "), ". ",
      el("a", { href: this.app.address({ batch: null }) }, "Back to now"));
  }

  resize() { this.charts?.forEach((chart) => chart.resize()); }
  restyle() { this.charts?.forEach((chart) => chart.restyle()); }
}

function newestTable(join) {
  const s = join.series, first = Math.max(0, s.batch.length - 20);
  const rows = s.batch.slice(first).map((batch, k) => {
    const at = first + k;
    return [number(batch), clock(s.time[at]), ...join.inputs.map((one) => number(s.rows[one.name][at])), number(s.results[at]),
      duration(s.seconds[at]), bytes(s.resident[at]), bytes(s.spilled[at])];
  }).reverse();
  const heads = ["Batch", "Time", ...join.inputs.map((one) => one.name), "Results", "In the join", "In memory", "On disk"];
  return table("The newest batches", heads, rows, { numeric: heads.map((_, at) => at).slice(2) });
}
