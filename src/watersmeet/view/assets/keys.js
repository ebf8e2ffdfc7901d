// Frequent keys, fan-out, and why a row is not out yet.

import { el, refill } from "./dom.js";
import { duration, moment, number, percent, plural, short } from "./format.js";
import { streamColor } from "./charts.js";

const RARE = 0.005, RECENT = 50; // batches, as the server has it

// A key that is not among the most frequent ones was not counted: that is no zero.
function share(value, css) {
  if (!value) return el("span", { class: "quiet", title: "not among the most frequent" }, "–");
  return el("span", { class: "share" }, el("span", { class: "share-bar" }, el("span", { vars: { "--share": `${100 * value}%`, "--key": css } })), percent(value));
}

function hotKeys(join) {
  const hottest = join.keys.hot.filter((hot) => Math.max(hot.result_share, ...Object.values(hot.shares)) >= RARE);
  if (!hottest.length) return el("p", { class: "calm" }, "No key stands out.");
  const names = join.inputs.map((one) => one.name);
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Hot keys" }, el("table", { class: "keys" },
    el("caption", { class: "hidden" }, "The most frequent keys, with their shares of rows and results"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Key"), names.map((name) => el("th", { scope: "col" }, `of ${name}`)), el("th", { scope: "col" }, "of results"), el("th", { scope: "col", class: "number" }, "results per row"))),
    el("tbody", {}, hottest.map((hot) => el("tr", {},
      el("th", { scope: "row" }, el("code", {}, hot.key)),
      names.map((name, at) => el("td", {}, share(hot.shares[name] ?? 0, streamColor(at)))),
      el("td", {}, share(hot.result_share, "var(--results)")),
      el("td", { class: "number" }, hot.results ? short(hot.per_row) : "–"))))));
}

function fanOut(join) {
  const fan = join.keys.fan_out;
  if (!fan) {
    const some = join.series.results.slice(-RECENT).some((count) => count);
    return el("p", { class: "calm" }, some ? "Not known: no sample of the newest batches has results with their whole key." : "No results in the newest batches.");
  }
  return el("dl", { class: "figures" }, [["average", fan.mean], ["p90", fan.p90], ["p99", fan.p99], ["largest", fan.max]].map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, short(value)))));
}

export class Keys {
  constructor(app) {
    this.app = app;
    this.hot = el("div", {});
    this.fan = el("div", {});
    this.answer = el("div", { class: "answer", role: "status", "aria-live": "polite" });
    this.fields = [];
    this.nulls = el("span", { hidden: true }, " In this join a null matches a null: write it as ", el("code", {}, "\\N"), ".");
    this.labels = el("div", { class: "fields" });
    this.form = el("form", { class: "ask", onsubmit: (event) => { event.preventDefault(); this.ask(); } }, this.labels, el("button", { type: "submit" }, "Explain"));
    this.node = el("div", { class: "view" },
      el("section", { class: "card" }, el("h2", {}, "Why is this row not out yet?"),
        el("p", { class: "hint" }, "Type a key: the rows held for it, since when, and what each waits for.", this.nulls),
        app.live ? this.form : el("p", {}, "A saved page cannot ask the join. Open it with ", el("code", {}, "watersmeet ui STATE_DIR"), "."), this.answer),
      el("section", { class: "card" }, el("h2", {}, "Hot keys"), el("p", { class: "hint" }, "Approximate: up to twenty keys that stand out, with their shares of all rows and results so far, and the results of each of their rows on the input that has fewest."), this.hot),
      el("section", { class: "card" }, el("h2", {}, "Fan-out"), el("p", { class: "hint" }, "Results of one key in one batch, over the newest batches."), this.fan));
  }

  render(join) {
    this.join = join;
    refill(this.hot, hotKeys(join));
    refill(this.fan, fanOut(join));
    if (!this.app.live) return;
    if (!this.fields.length) this.build(join);
    const { key } = this.app.wanted;
    if (key === null || JSON.stringify(key) === this.asked) return;
    this.fields.forEach((field, at) => { field.value = key[at] ?? ""; });
    this.ask();
  }

  // A field for each column of the key.
  build(join) {
    this.nulls.hidden = !join.nulls_match;
    const columns = join.key_columns.length ? join.key_columns : [{ name: "key", type: "" }];
    const labels = columns.length === 1 ? ["Key"] : columns.map((one) => one.name);
    this.fields = columns.map((one, at) => el("input", { id: `key-${at}`, name: "key", type: "text", autocomplete: "off", spellcheck: "false",
      placeholder: columns.length === 1 ? [one.name, one.type].filter(Boolean).join(", ") : one.type }));
    this.labels.replaceChildren(...this.fields.map((field, at) => el("div", {}, el("label", { for: field.id }, labels[at]), field)));
  }

  async ask() {
    const values = this.fields.map((field) => field.value), text = values.join(", ");
    this.asked = JSON.stringify(values);
    if (JSON.stringify(this.app.wanted.key) !== this.asked) this.app.go({ key: values }, { step: false });
    const query = values.map((value) => `key=${encodeURIComponent(value)}`).join("&");
    this.answer.replaceChildren(el("p", { class: "hint" }, "Looking …"));
    try {
      const found = await this.app.fetchJson(`api/joins/${encodeURIComponent(this.app.name)}/why?${query}`);
      this.answer.replaceChildren(this.explained(text, found));
    } catch (error) {
      this.answer.replaceChildren(el("p", { class: "problem" }, `No answer: ${error.message}`));
    }
  }

  explained(text, found) {
    if (found.error) return el("p", { class: "problem" }, found.error);
    if (!found.rows.length) {
      return el("p", {}, "Nothing is held for the key ", el("code", {}, text), ": its rows have left, or none came. All its results are out.");
    }
    return el("div", {}, el("p", {}, el("strong", {}, found.rows.length >= found.most ? `The first ${found.most} rows` : plural(found.rows.length, "row")), " held for the key ", el("code", {}, text), ":"),
      el("ol", { class: "reasons" }, found.rows.map((row) => el("li", {}, el("details", {},
        el("summary", {}, row.sentence, this.since(row)),
        el("dl", {}, [["partition", row.partition], ...Object.entries(row.row)].map(([name, value]) => [el("dt", {}, name), el("dd", {}, typeof value === "string" ? value : JSON.stringify(value))])))))),
      this.holders(found.rows));
  }

  since(row) {
    const s = this.join.series, at = s.batch.indexOf(row.batches[0]);
    return at < 0 ? null : el("span", { class: "where" }, ` since ${moment(s.time[at])}${row.batches[0] === row.batches[1] ? "" : " or later"}`);
  }

  // Which input holds the others back.
  holders(rows) {
    const names = [...new Set(rows.flatMap((row) => row.inputs))];
    const facts = this.join.inputs.filter((one) => names.includes(one.name)).map((one) =>
      `${one.name}: ${one.ended ? "ended" : `${number(one.rows)} rows so far`}${one.clock ? `, its clock is at ${one.clock}` : ""}${!one.ended && one.silent_seconds >= 10 ? `, silent for ${duration(one.silent_seconds)}` : ""}`);
    return facts.length ? el("p", { class: "hint" }, `They wait for ${facts.join("; ")}.`) : null;
  }
}
