// The page: which join, which view, which moment; all of it in the address. Data comes from the server as it is written,
// or from the page itself if it was saved.

import { el } from "./dom.js";
import { clock, duration, number, plural } from "./format.js";
import { Overview } from "./overview.js";
import { Flow } from "./flow.js";
import { Decisions } from "./decisions.js";
import { Keys } from "./keys.js";

const VIEWS = { overview: Overview, flow: Flow, decisions: Decisions, keys: Keys };
const TITLES = { overview: "Overview", flow: "Flow", decisions: "Decisions", keys: "Keys and rows" };
const MOST_BATCHES = 5000, MOST_DECISIONS = 1000; // as many as the server keeps
const find = (id) => document.getElementById(id);

class App {
  constructor() {
    const saved = find("documents");
    this.saved = saved ? JSON.parse(saved.textContent) : null;
    this.live = !this.saved;
    this.joins = Object.create(null);
    this.views = {};
    this.paused = false;
    this.wanted = {};
    this.address = (change) => {
      const parts = Object.entries({ ...this.wanted, ...change }).flatMap(([name, value]) => [value ?? []].flat().map((one) => `${name}=${encodeURIComponent(one)}`));
      return `#${parts.join("&")}`;
    };
  }

  async start() {
    this.theme(localStorageOf("watersmeet-theme") ?? "auto");
    find("theme").addEventListener("click", () => this.theme({ auto: "light", light: "dark", dark: "auto" }[this.chosen]));
    find("pause").addEventListener("click", () => this.pause(!this.paused));
    find("pause").hidden = !this.live;
    find("skip").addEventListener("click", (event) => { event.preventDefault(); find("main").focus(); }); // the address is for the view
    find("join").addEventListener("change", (event) => { location.hash = this.address({ join: event.target.value, batch: null, kind: null, key: null }); });
    window.addEventListener("hashchange", () => this.read());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
    let waiting = 0;
    window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => this.view?.resize?.(), 100); });
    const overview = this.saved ?? await this.fetchJson("api/joins");
    this.names = overview.joins;
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    find("foot").textContent = `Watersmeet ${overview.release}${this.live ? "" : " · a saved page"} · batches in the time of this browser${zone ? ` (${zone})` : ""}`;
    find("join").replaceChildren(...this.names.map((name) => el("option", { value: name }, name)));
    find("choice").hidden = this.names.length < 2;
    this.read();
    if (this.live) this.listen();
  }

  // What the address says.
  read() {
    const said = new URLSearchParams(location.hash.slice(1));
    const [join, view, batch] = ["join", "view", "batch"].map((name) => said.get(name) ?? "");
    const before = this.wanted;
    this.wanted = { join: this.names.includes(join) ? join : this.names[0], view: Object.hasOwn(VIEWS, view) ? view : "overview",
      batch: /^\d+(-\d+)?$/.test(batch) ? batch : null, kind: said.getAll("kind"), key: said.has("key") ? said.getAll("key") : null };
    if (before.join !== this.wanted.join) this.views = {};
    this.name = this.wanted.join;
    find("join").value = this.name;
    for (const tab of document.querySelectorAll(".tabs a")) {
      tab.href = this.address({ view: tab.dataset.view });
      if (tab.dataset.view === this.wanted.view) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    document.title = `${this.name} · ${TITLES[this.wanted.view]} · Watersmeet`;
    this.load();
  }

  // Another address, as a step that one can go back from, or in place of this one.
  go(change, { step = true } = {}) {
    if (step) { location.hash = this.address(change); return; }
    history.replaceState(null, "", this.address(change));
    this.read();
  }

  // The batches that the address names: the first and the last.
  get range() {
    if (this.wanted.batch === null) return null;
    const [from, to] = this.wanted.batch.split("-").map(Number);
    return [from, to ?? from];
  }

  listen() {
    const events = new EventSource("api/events");
    events.onmessage = () => { if (!this.paused && !document.hidden) this.load(); };
    events.onerror = () => this.say("no connection", "quiet", "The server has gone, or the network has.");
    document.addEventListener("visibilitychange", () => { if (!document.hidden && !this.paused) this.load(); });
  }

  async fetchJson(path) {
    const answer = await fetch(path);
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }

  async load() {
    const name = this.name;
    if (this.loading === name) return;
    this.loading = name;
    try {
      if (this.saved) this.joins[name] = this.saved.documents[name];
      else {
        const known = this.joins[name], after = known?.series?.batch.at(-1) ?? -1;
        const news = await this.fetchJson(`api/joins/${encodeURIComponent(name)}?after=${after}`);
        this.joins[name] = known?.series && news.series ? merged(known, news) : news;
      }
      if (name === this.name) this.render();
    } catch (error) {
      this.say("no connection", "quiet", error.message);
    } finally {
      if (this.loading === name) this.loading = null;
    }
  }

  render() {
    const join = this.join = this.joins[this.name];
    find("title").textContent = this.name;
    find("title").classList.toggle("hidden", this.names.length > 1); // the choice shows it
    const main = find("main");
    if (join.problem) this.say("problem", "bad", join.problem);
    if (!join.series || !join.series.batch.length) {
      this.say("starting", "quiet", "No batch is complete yet.");
      main.replaceChildren(el("p", { class: "loading" }, "Waiting for the first batch …"));
      this.view = null;
      return;
    }
    this.status(join);
    const view = this.views[this.wanted.view] ??= new VIEWS[this.wanted.view](this);
    if (view.node.parentNode !== main) main.replaceChildren(view.node);
    this.view = view;
    const at = this.range ? join.series.batch.indexOf(this.range[0]) : -1;
    view.render(join, at);
    view.resize?.();
  }

  status(join) {
    const ago = duration(Math.max(0, (join.now - join.newest_time) / 1e6));
    const kind = join.how === "inner" ? "" : `${join.how.replaceAll("_", " ")} `;
    const text = `${kind}${join.family.replaceAll("_", "-")} join (${join.operator}), ${plural(join.partitions, "partition")}, batch ${number(join.newest_batch)} ${
      join.status === "running" ? `was ${ago} ago` : `at ${clock(join.newest_time)}`}`;
    const shown = this.paused ? "paused" : join.phase && join.status === "running" ? join.phase : join.status;
    if (!join.problem) this.say(shown, join.status, text);
  }

  say(state, css, text) {
    const pill = find("state");
    if (pill.textContent !== state) pill.textContent = state; // this alone is read out
    pill.className = `pill ${css}`;
    find("situation").textContent = text;
  }

  pause(on) {
    this.paused = on;
    find("pause").setAttribute("aria-pressed", String(on));
    find("pause").textContent = on ? "Resume" : "Pause";
    if (!on) this.load();
    else if (this.join?.series) this.status(this.join);
  }

  theme(chosen) {
    this.chosen = chosen;
    localStorageOf("watersmeet-theme", chosen);
    if (chosen === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", chosen);
    find("theme").textContent = { auto: "Auto", light: "Light", dark: "Dark" }[chosen];
    find("theme").setAttribute("aria-label", `Theme: ${chosen}`);
    this.restyle();
  }

  restyle() {
    for (const view of Object.values(this.views)) view.restyle?.();
  }
}

// A frame or a file may have no storage.
function localStorageOf(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(name);
    localStorage.setItem(name, value);
  } catch { /* then the choice lasts as long as the page */ }
  return null;
}

// What is known and what is new; a series that begins or ends in between is filled up with zeros.
export function merged(known, news) {
  const before = known.series.batch.length, more = news.series.batch.length;
  const joined = (old, fresh) => [...(old ?? Array(before).fill(0)), ...(fresh ?? Array(more).fill(0))].slice(-MOST_BATCHES);
  const series = {};
  for (const [name, value] of Object.entries(news.series)) {
    if (Array.isArray(value)) series[name] = joined(known.series[name], value);
    else {
      const names = new Set([...Object.keys(known.series[name]), ...Object.keys(value)]);
      series[name] = Object.fromEntries([...names].map((inner) => [inner, joined(known.series[name][inner], value[inner])]));
    }
  }
  return { ...news, series, decisions: [...known.decisions, ...news.decisions].slice(-MOST_DECISIONS) };
}

new App().start();
