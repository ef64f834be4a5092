// Truncated values of the server as text. Pure.

import type { Node } from "./types";
import { count, size } from "./words";

/** Values that JSON lacks are written as `{"$holdfast": kind, "value": …}`. */
function inside(value: unknown): unknown {
  return value !== null && typeof value === "object" && "$holdfast" in value ? (value as unknown as { value: unknown }).value : value;
}

/** The characters of a text that came with its node. */
export function textOf(node: Node): string {
  return String(inside(node.value) ?? "");
}

/** A value that is neither a container nor a text: `1.0` is not `1`, and a large number keeps all of its digits. */
export function scalarOf(node: Node): string {
  if (node.kind === "bytes") return `${size(node.count ?? 0)} of bytes`;
  if (node.kind === "artifact") {
    const { digest, name } = node.value as { digest: string; name: string | null };
    return `${name ?? digest.slice(0, 12)} (${size(node.count ?? 0)})`;
  }
  if (node.kind === "none") return "None";
  const value = node.kind === "int" || node.kind === "float" ? inside(node.value) : node.value;
  if (node.kind === "float" && Number.isInteger(value)) return `${String(value)}.0`;
  return typeof value === "string" ? value : JSON.stringify(value);
}

export const isContainer = (node: Node) => node.kind === "dict" || node.kind === "list";

/** A value in a line, or in several where it is a text of several. */
export function written(node: Node): string {
  if (isContainer(node)) {
    const [left, right] = node.kind === "dict" ? "{}" : "[]";
    if (!node.entries) return node.count ? `${left}${count(node.count, "item")}${right}` : `${left}${right}`;
    const parts = node.entries.map(({ label, node: item }) => (node.kind === "dict" ? `${label}: ${written(item)}` : written(item)));
    if (node.more) parts.push(`… ${node.more.toLocaleString("en")} more`);
    return `${left}${parts.join(", ")}${right}`;
  }
  if (node.kind !== "str") return scalarOf(node);
  const text = textOf(node);
  const shown = text.includes("\n") ? text : JSON.stringify(text);
  return node.more ? `${shown}… (${count(node.count ?? 0, "character")})` : shown;
}

/** A short description of a closed container. */
export function glimpse(node: Node): string {
  const parts = (node.entries ?? []).slice(0, 4).map(({ label, node: item }) => {
    const text = isContainer(item) ? (item.kind === "dict" ? "{…}" : "[…]") : written(item).slice(0, 30);
    return node.kind === "dict" ? `${label}: ${text}` : text;
  });
  return parts.join(", ") + ((node.count ?? 0) > parts.length ? ", …" : "");
}
