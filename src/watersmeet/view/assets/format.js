// Numbers, sizes and times as people read them.

export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) || size >= 100) return Math.round(value).toLocaleString("en-US");
  if (size >= 1) return value.toLocaleString("en-US", { maximumFractionDigits: 1 });
  return size === 0 ? "0" : size >= 0.001 ? value.toPrecision(2) : value.toExponential(1);
}

// Short enough for an axis or a tile: 1.2 M
export function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (Math.abs(value) >= size) {
      const scaled = value / (unit === "k" ? 1e3 : size);
      return `${scaled >= 100 ? scaled.toFixed(0) : scaled.toFixed(1).replace(/\.0$/, "")} ${unit}`;
    }
  }
  return number(value);
}

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (Math.abs(size) < 1000 || unit === "TB") return `${unit === "B" || size >= 100 ? Math.round(size) : size.toFixed(1)} ${unit}`;
    size /= 1000;
  }
  return "–";
}

export function percent(share) {
  const points = share * 100;
  if (points === 0) return "0 %";
  return `${points >= 10 ? points.toFixed(0) : points >= 0.1 ? points.toFixed(1) : "<0.1"} %`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

const two = (value) => String(value).padStart(2, "0");

export function clock(microseconds) {
  if (!microseconds) return "–";
  const at = new Date(microseconds / 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function moment(microseconds) {
  if (microseconds === null || microseconds === undefined) return "–";
  const at = new Date(microseconds / 1000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(microseconds)}`;
}

export function plural(count, one) {
  return `${number(count)} ${one}${count === 1 ? "" : one.endsWith("ch") ? "es" : "s"}`;
}
