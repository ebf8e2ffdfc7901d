// Elements out of plain values. Text is always text: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, inner] of Object.entries(value)) node.style.setProperty(key, inner);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

export function el(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

// Give a node other children. Those that are there are made alike, not thrown away: whoever has one in focus, has scrolled
// it or has marked its text keeps that when the numbers change.
export function refill(parent, ...children) {
  const now = [...parent.childNodes];
  const wanted = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(child)));
  wanted.forEach((child, at) => (at < now.length ? liken(now[at], child) : parent.append(child)));
  now.slice(wanted.length).forEach((child) => child.remove());
}

function liken(node, wanted) {
  if (node.nodeName !== wanted.nodeName) { node.replaceWith(wanted); return; }
  if (!(node instanceof Element)) { if (node.data !== wanted.data) node.data = wanted.data; return; }
  for (const { name } of [...node.attributes]) if (!wanted.hasAttribute(name)) node.removeAttribute(name);
  for (const { name, value } of [...wanted.attributes]) if (name !== "style" && node.getAttribute(name) !== value) node.setAttribute(name, value);
  // As an attribute the policy would refuse it.
  if (node.style.cssText !== wanted.style.cssText) node.style.cssText = wanted.style.cssText;
  refill(node, ...wanted.childNodes);
}

// A sentence in which what stands between backticks is code.
export function prose(text) {
  return text.split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part));
}

// A number with its raw value beside it, for whoever reads the page by program.
export function figure(name, value, text, tag = "span") {
  return el(tag, { class: "figure", "data-figure": name, "data-value": value ?? "" }, text);
}

export function table(caption, heads, rows, { numeric = [] } = {}) {
  const align = (at) => (numeric.includes(at) ? "number" : null);
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", { class: "hidden" }, caption),
      el("thead", {}, el("tr", {}, heads.map((head, at) => el("th", { scope: "col", class: align(at) }, head)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, at) =>
        at === 0 ? el("th", { scope: "row" }, cell) : el("td", { class: align(at) }, cell)))))));
}
