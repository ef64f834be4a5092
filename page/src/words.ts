// Numbers and times as text. Pure: the current time is a parameter.

const UNITS: [number, string][] = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "m"],
];

/** How long ago, in the largest unit that fits: `3 m ago`. */
export function age(at: string, now: number): string {
  const seconds = Math.max(0, (now - Date.parse(at)) / 1000);
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 5) return "just now";
  for (const [length, name] of UNITS) {
    if (seconds >= length) return `${Math.floor(seconds / length)} ${name} ago`;
  }
  return `${Math.floor(seconds)} s ago`;
}

/** A count that stops at a limit: `100+`. */
export const upTo = (found: number, most: number): string => (found < most ? found.toLocaleString("en") : `${most.toLocaleString("en")}+`);

/** Until when: `in 3 m 20 s`, or `overdue by 4 s`. */
export function until(at: string, now: number): string {
  const seconds = Math.round((Date.parse(at) - now) / 1000);
  if (!Number.isFinite(seconds)) return "";
  const length = wholeSpan(Math.abs(seconds));
  return seconds < 0 ? `overdue by ${length}` : `in ${length}`;
}

export const isPast = (at: string | null, now: number): boolean => at !== null && Date.parse(at) < now;

/** A duration of whole seconds, in its two largest units: `2 d 3 h`. */
export function wholeSpan(seconds: number): string {
  const units: [number, string][] = [...UNITS, [1, "s"]];
  const first = units.findIndex(([length]) => seconds >= length);
  if (first < 0) return "0 s";
  let rest = seconds;
  return units
    .slice(first, first + 2)
    .flatMap(([length, name]) => {
      const whole = Math.floor(rest / length);
      rest -= whole * length;
      return whole > 0 ? [`${whole} ${name}`] : [];
    })
    .join(" ");
}

/** A duration in seconds: `8 ms`, `1.2 s`, `3 m 20 s`. */
export function span(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 0.001) return "<1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3_600) return `${Math.floor(whole / 60)} m ${whole % 60} s`;
  const minutes = Math.round(seconds / 60);
  return `${Math.floor(minutes / 60)} h ${minutes % 60} m`;
}

/** Bytes: `830 B`, `4.1 kB`. */
export function size(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`;
  const names = ["kB", "MB", "GB", "TB"];
  let value = bytes;
  let name = "B";
  for (const next of names) {
    if (value < 1000) break;
    value /= 1000;
    name = next;
  }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${name}`;
}

/** `1 version`, `3 versions`. */
export function count(number: number, noun: string): string {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** An annotation as `1,200 tokens` or `cost 0.0102`; the unit of cost is up to the application. */
export function amount(name: string, value: number): string {
  const figure = value.toLocaleString("en", { maximumFractionDigits: 6 });
  return name.includes("token") ? `${figure} ${name.replaceAll("_", " ")}` : `${name.replaceAll("_", " ")} ${figure}`;
}

/** The numbers among annotations. */
export function amounts(noted: Record<string, unknown> | null | undefined): string[] {
  return Object.entries(noted ?? {}).flatMap(([name, value]) =>
    typeof value === "number" && (name.includes("token") || name.includes("cost")) ? [amount(name, value)] : [],
  );
}

/** Spending and its limit: `cost 0.4 of 5`. */
export function spending(limits: Record<string, number> | null, spent: Record<string, number>): string[] {
  const figure = (value: number) => value.toLocaleString("en", { maximumFractionDigits: 6 });
  return Object.entries(limits ?? {}).map(([name, most]) => `${name} ${figure(spent[name] ?? 0)} of ${figure(most)}`);
}

/** A time of day, with the date unless it is today. */
export function clock(at: string, now: number): string {
  const then = new Date(at);
  if (Number.isNaN(then.getTime())) return "";
  const time = then.toLocaleTimeString("en-GB");
  return then.toDateString() === new Date(now).toDateString()
    ? time
    : `${then.toLocaleDateString("en-CA")} ${time}`;
}

/** A value in one line of at most so many characters. */
export function brief(value: unknown, most = 80): string {
  const text = typeof value === "string" ? JSON.stringify(value.slice(0, most + 1)) : shortJson(value, most);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** JSON of the first part of a value; the rest of a large value is not converted. */
function shortJson(value: unknown, most: number): string {
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "";
  const parts: string[] = [];
  let length = 2;
  const isList = Array.isArray(value);
  for (const key of Object.keys(value)) {
    const item = brief((value as Record<string, unknown>)[key], most - length);
    const part = isList ? item : `${JSON.stringify(key)}: ${item}`;
    parts.push(part);
    length += part.length + 2;
    if (length > most) break;
  }
  return isList ? `[${parts.join(", ")}]` : `{${parts.join(", ")}}`;
}

/** Values in a line; texts without quotes. */
export const listed = (values: unknown[]): string => values.map((each) => (typeof each === "string" ? each : brief(each))).join(", ");
