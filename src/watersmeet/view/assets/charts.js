// Lanes: one curve each, so that none hides another, over one axis of time. Drawn by uPlot.

import { el } from "./dom.js";
import { moment, plural } from "./format.js";

const STREAMS = ["--a", "--b", "--c", "--d", "--e", "--f"];

export function streamColor(at) {
  return `var(${STREAMS[at % STREAMS.length]})`;
}

export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name.replace(/^var\(|\)$/g, "")).trim();
}

// Amounts of batches as amounts per second, each for the time since the batch before.
export function rates(series, amounts) {
  return amounts.map((amount, at) => {
    const before = at || 1; // the first batch counts as long as the second
    const since = before < amounts.length ? (series.time[before] - series.time[before - 1]) / 1e6 : series.seconds[at];
    return amount / Math.max(since, series.seconds[at], 0.001);
  });
}

export class Lane {
  // curves: [{ label, color, of: (series) => values, fill, stacked }], all in one unit
  constructor({ title, unit, format, curves, height = 92, axis = false, line = null, step = true, onpick, onhover }) {
    Object.assign(this, { title, unit, format, curves, height, axis, line, step, onpick, onhover });
    this.plot = null;
    this.marks = { restarts: [], failures: [], moment: null };
    this.value = el("span", { class: "lane-value" });
    this.body = el("div", { class: "lane-body", role: "img" });
    const key = curves.length > 1 || line
      ? el("span", { class: "lane-key" }, curves.map((curve) =>
        el("span", {}, el("i", { vars: { "--key": curve.color } }), curve.label)),
      line ? el("span", {}, el("i", { class: "dashed" }), line.label) : null)
      : null;
    this.node = el("figure", { class: "lane" },
      el("figcaption", {},
        el("span", { class: "lane-title" }, curves.length === 1 ? el("i", { vars: { "--key": curves[0].color } }) : null, title),
        el("span", { class: "lane-unit" }, unit), key, this.value),
      this.body);
  }

  update(join, at) {
    const { series } = join;
    const values = this.curves.map((curve) => curve.of(series));
    const stacked = this.curves.some((curve) => curve.stacked);
    const drawn = stacked ? values.map((_, k) => values[0].map((_, i) =>
      values.slice(k).reduce((sum, one) => sum + (one[i] ?? 0), 0))) : values;
    const level = this.line ? this.line.of(series) : null;
    const times = series.time.map((time) => time / 1e6);
    this.data = [times, ...drawn];
    this.raw = values;
    this.level = level;
    const seconds = (list) => list.map((one) => one.time / 1e6);
    this.marks = { restarts: seconds(join.restarts), failures: seconds(join.failures), moment: at >= 0 ? times[at] : null };
    const last = this.last = at >= 0 ? at : times.length - 1;
    if (!this.hovered) this.show(last);
    const highest = Math.max(0, ...drawn[0].map((value) => value ?? 0));
    this.body.setAttribute("aria-label",
      `${this.title}, ${this.unit}: ${this.curves.map((curve, k) => `${curve.label} ${this.format(values[k][last] ?? 0)}`).join(", ")}; highest ${this.format(highest)}${this.axis ? happened(join) : ""}`);
    if (times.length < 1) return;
    if (!this.plot) this.draw();
    else this.plot.setData(this.data);
  }

  show(at) {
    const texts = this.raw.map((values, k) => {
      const text = this.format(values[at]);
      return this.curves.length > 1 ? `${this.curves[k].label} ${text}` : text;
    });
    this.value.textContent = texts.join(" · ");
  }

  draw() {
    const width = Math.max(this.body.clientWidth, 200);
    const ink = color("--quiet"), grid = color("--hair");
    const stepped = window.uPlot.paths.stepped({ align: -1 });
    const series = this.curves.map((curve) => ({
      label: curve.label,
      stroke: color(curve.color),
      width: 1.6,
      fill: curve.fill === false ? undefined : `${color(curve.color)}${curve.stacked ? "66" : "2b"}`,
      paths: this.step ? stepped : undefined,
      points: { show: false },
    }));
    const axes = [
      { show: this.axis, stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "11px system-ui", size: 24, space: 66,
        values: [[86400, "{YYYY}-{MM}-{DD}"], [3600, "{HH}:{mm}"], [60, "{HH}:{mm}"], [1, "{HH}:{mm}:{ss}"], [0.001, ":{ss}.{fff}"]].map(
          ([length, form]) => [length, form, null, null, null, null, null, null, 1]) },
      { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "11px system-ui", size: 62,
        splits: (_u, _axis, low, high) => [0, high / 2, high], values: (_u, marks) => marks.map((mark) => this.format(mark)) },
    ];
    if (!this.axis) axes[0] = { show: false };
    this.plot = new window.uPlot({
      width, height: this.height + (this.axis ? 24 : 0), series: [{}, ...series], axes, legend: { show: false },
      padding: [8, 22, this.axis ? 0 : 4, 0],
      scales: { x: { range: (_u, low, high) => this.span = spread(low, high, Math.max(...this.marks.failures)) },
        y: { range: (_u, _low, high) => [0, nice(Math.max(high ?? 0, this.level ?? 0))] } },
      cursor: { sync: { key: "lanes" }, drag: { x: false, y: false }, y: false, points: { size: 6 } },
      hooks: {
        draw: [(u) => this.mark(u)],
        setCursor: [(u) => {
          const { idx } = u.cursor;
          this.hovered = idx !== null && idx !== undefined && u.cursor.left >= 0;
          this.show(this.hovered ? idx : this.last);
          this.onhover?.(this.hovered ? idx : null);
        }],
        ready: [(u) => u.over.addEventListener("click", () => {
          if (u.cursor.idx !== null && u.cursor.idx !== undefined) this.onpick?.(u.cursor.idx);
        })],
      },
    }, this.data, this.body);
  }

  mark(u) {
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    ctx.save();
    if (this.level) {
      const y = u.valToPos(this.level, "y", true);
      ctx.strokeStyle = color("--bad");
      ctx.setLineDash([5 * ratio, 4 * ratio]);
      ctx.lineWidth = 1.5 * ratio;
      ctx.beginPath(); ctx.moveTo(bbox.left, y); ctx.lineTo(bbox.left + bbox.width, y); ctx.stroke();
    }
    const vertical = (time, stroke, dash, label, line = 1) => {
      const x = u.valToPos(time, "x", true), right = bbox.left + bbox.width;
      if (x < bbox.left - 1 || x > right + 1) return;
      ctx.strokeStyle = stroke; ctx.setLineDash(dash.map((part) => part * ratio)); ctx.lineWidth = 1.5 * ratio;
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      if (label && this.axis) {
        ctx.fillStyle = stroke; ctx.font = `${10 * ratio}px system-ui`;
        const fits = x + 3 * ratio + ctx.measureText(label).width <= right;
        ctx.textAlign = fits ? "left" : "right";
        ctx.fillText(label, x + (fits ? 3 : -3) * ratio, bbox.top + line * 11 * ratio);
      }
    };
    for (const time of this.marks.restarts) vertical(time, color("--quiet"), [2, 3], "restart");
    for (const time of this.marks.failures) vertical(Math.min(time, this.span[1]), color("--bad"), [4, 2], "failure", 2);
    if (this.marks.moment !== null) vertical(this.marks.moment, color("--ink"), [], null);
    ctx.restore();
  }

  resize() {
    if (this.plot && this.body.clientWidth) this.plot.setSize({ width: this.body.clientWidth, height: this.height + (this.axis ? 24 : 0) });
  }

  restyle() {
    this.plot?.destroy();
    this.plot = null;
    if (this.data?.[0].length) this.draw();
  }
}

// What stands on the axis of time, for those who do not see it.
function happened(join) {
  const said = [["restart", join.restarts], ["failure", join.failures]].filter(([, list]) => list.length);
  return said.map(([what, list]) => `; ${plural(list.length, what)}, the last at ${moment(list.at(-1).time)}`).join("");
}

// The axis of time. One moment is no length; a run that has failed has done so after its last batch, or long after it.
function spread(low, high, failed) {
  if (high - low < 1) [low, high] = [low - 1, high + 1];
  return [low, Math.max(high, Math.min(failed, high + (high - low) / 20))];
}

// The next round number, so that an axis ends with one.
function nice(value) {
  if (!(value > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].map((step) => step * size).find((step) => step >= value) ?? value;
}
